"""The task that every client plays, and the expert that knows it."""

from turnwise.tools import ToolCall, get_parser

QUESTION = "What is x?"
NOTES = {"x": "look at y", "y": "found 42", "z": "found 7"}
"""What the tool `look` returns."""


def _calls(*calls):
    return "".join(get_parser("hermes").render(ToolCall(name, found)) for name, found in calls)


EXPERT = {
    QUESTION: _calls(("look", {"key": "x"})),
    "look at y": _calls(("look", {"key": "y"})),
    "found 42": "It is 42.",
    "Find both!": _calls(("look", {"key": "z"}), ("look", {"key": "y"})),
    "into answer.txt.": _calls(("write", {"path": "answer.txt", "content": "42"})),
    "bytes to answer.txt": "Done.",
    "42 in the end": _calls(("final_answer", {"answer": "42"})),
}
"""The end of the last message, and the turn that follows it. The last characters all differ: that
is all the model has to look at."""


def expert_turn(prompt):
    """The turn that follows a prompt."""
    last = prompt.rpartition("<|im_end|>")[0].rstrip()
    return next(turn for end, turn in EXPERT.items() if last.endswith(end))
