"""Separates a model's thoughts from its answers.

Nothing in a thought is an action: no tool call in it is executed, and the environment does not get
it. Most models write thoughts between two tags, of which the first may be at the end of the prompt;
harmony (gpt-oss) has channels.
"""

from __future__ import annotations

import re

_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
_CHANNEL = "<|channel|>"
HARMONY_MARKS = ("<|start|>", _CHANNEL, "<|constrain|>", "<|message|>", "<|end|>", "<|return|>")
# A message of harmony: its channel, and its text up to the token that ends it.
_MESSAGE = re.compile(
    r"<\|channel\|>\s*+(\w*+)[^<]*+(?:<\|constrain\|>[^<]*+)?+<\|message\|>"
    r"((?:[^<]|<(?!\|(?:end|return|call|start)\|>))*+)"
)

_CLOSES = {"<think>": "\n</think>\n\n", "[THINK]": "[/THINK]"}

THOUGHT_MARKS = (*(tag for pair in _TAGS for tag in pair), *HARMONY_MARKS)
"""Decoding must keep these, or thoughts cannot be told from answers."""

THOUGHT_ENDS = tuple(end for _, end in _TAGS)


def answer_of(text: str, *, in_thought: bool = False) -> str:
    """Returns a turn without its thoughts.

    `in_thought`: the prompt ended with the start tag, so that the turn begins inside a thought.

    >>> answer_of("<think>Should I attack? No.</think>\\n\\nwait")
    'wait'
    >>> answer_of("<think>I could attack, or")
    ''
    """
    if in_thought and not any(end in text for _, end in _TAGS):
        return ""
    if _CHANNEL in text:
        said = [said.strip() for channel, said in _MESSAGE.findall(text) if channel == "final"]
        return "\n\n".join(said)
    for start, end in _TAGS:
        if start in text or end in text:
            text = _outside(text, start, end).strip()
    return text


def thought_of(text: str, *, in_thought: bool = False) -> str:
    """Returns the thoughts of a turn without their tags, for people to read.

    >>> thought_of("<think>Should I attack? No.</think>\\n\\nwait")
    'Should I attack? No.'
    """
    if _CHANNEL in text:
        said = [said.strip() for channel, said in _MESSAGE.findall(text) if channel == "analysis"]
        return "\n\n".join(said)
    for start, end in _TAGS:
        if end in text or (start in text and not in_thought):
            return _inside(text, start, end)
    return _without_tags(text).strip() if in_thought else ""


def _outside(text: str, start: str, end: str) -> str:
    """Returns the text after the first end tag, outside of every further pair of tags."""
    _, closed, after = text.partition(end)
    rest, kept = after if closed else text, []
    while rest:
        before, _, inside = rest.partition(start)
        kept.append(before)
        _, _, rest = inside.partition(end)
    return "".join(kept)


def _inside(text: str, start: str, end: str) -> str:
    """Returns what `_outside` leaves out, without the tags."""
    first, closed, rest = text.partition(end)
    thoughts = [_without_tags(first)] if closed else []
    rest = rest if closed else text
    while rest:
        _, _, inside = rest.partition(start)
        thought, _, rest = inside.partition(end)
        thoughts.append(thought)
    return "\n\n".join(thought.strip() for thought in thoughts if thought.strip())


def _without_tags(text: str) -> str:
    for start, _ in _TAGS:
        text = text.replace(start, "")
    return text


def close_of(text: str, *, in_thought: bool = False) -> str | None:
    """Returns what closes the thought that is open at the end of a turn; None if none is.

    >>> close_of("<think>I could attack, or")
    '\\n</think>\\n\\n'
    >>> close_of("<think>Should I attack? No.</think>wait") is None
    True
    """
    if _CHANNEL in text:
        channel, is_said, said = text.rpartition(_CHANNEL)[2].partition("<|message|>")
        is_open = is_said and channel.strip().startswith("analysis") and "<|end|>" not in said
        return "<|end|><|start|>assistant<|channel|>final<|message|>" if is_open else None
    for start, end in _TAGS:
        if text.rfind(start) > text.rfind(end):
            return _CLOSES[start]
    if in_thought and not any(end in text for _, end in _TAGS):
        return _CLOSES["<think>"]
    return None


def opens_thought(prompt: str) -> bool:
    """Whether a prompt ends with the start tag of a thought, as some chat templates do."""
    return prompt.rstrip().endswith(tuple(start for start, _ in _TAGS))


def may_open_thought(template: str) -> bool:
    """Whether a chat template contains such tags at all."""
    return any(start in template for start, _ in _TAGS)
