"""Separates a model's thoughts from its answers.

Nothing in a thought is an action: no tool call in it is executed, and the environment does not get
it. Most models write thoughts between two tags, of which the first may be at the end of the prompt;
harmony (gpt-oss) has channels.
"""

import re

_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
# What precedes the first end is a thought, whose start may be in the prompt.
_THOUGHTS = {
    (start, end): re.compile(
        rf"\A.*?{re.escape(end)}|{re.escape(start)}.*?(?:{re.escape(end)}|\Z)", re.DOTALL
    )
    for start, end in _TAGS
}
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
    if in_thought and not _ends_thought(text):
        return ""
    if _CHANNEL in text:
        return _said(text, "final")
    for (start, end), thought in _THOUGHTS.items():
        if start in text or end in text:
            text = thought.sub("", text).strip()
    return text


def read_thought(text: str, *, in_thought: bool = False) -> str:
    """Returns the thoughts of a turn without their tags, for people to read.

    >>> read_thought("<think>Should I attack? No.</think>\\n\\nwait")
    'Should I attack? No.'
    """
    if _CHANNEL in text:
        return _said(text, "analysis")
    for (start, end), thought in _THOUGHTS.items():
        if end in text or (start in text and not in_thought):
            parts = [_without_tags(part.removesuffix(end)) for part in thought.findall(text)]
            return "\n\n".join(filter(None, map(str.strip, parts)))
    return _without_tags(text).strip() if in_thought else ""


def _said(text: str, channel: str) -> str:
    return "\n\n".join(said.strip() for name, said in _MESSAGE.findall(text) if name == channel)


def _ends_thought(text: str) -> bool:
    return any(end in text for end in THOUGHT_ENDS)


def _without_tags(text: str) -> str:
    for start, _ in _TAGS:
        text = text.replace(start, "")
    return text


def closing_tags(text: str, *, in_thought: bool = False) -> str | None:
    """Returns what closes the thought that is open at the end of a turn; None if none is.

    >>> closing_tags("<think>I could attack, or")
    '\\n</think>\\n\\n'
    >>> closing_tags("<think>Should I attack? No.</think>wait") is None
    True
    """
    if _CHANNEL in text:
        channel, is_said, said = text.rpartition(_CHANNEL)[2].partition("<|message|>")
        is_open = is_said and channel.strip().startswith("analysis") and "<|end|>" not in said
        return "<|end|><|start|>assistant<|channel|>final<|message|>" if is_open else None
    for start, end in _TAGS:
        if text.rfind(start) > text.rfind(end):
            return _CLOSES[start]
    if in_thought and not _ends_thought(text):
        return _CLOSES["<think>"]
    return None


def opens_thought(prompt: str) -> bool:
    """Whether a prompt ends with the start tag of a thought, as some chat templates do."""
    return prompt.rstrip().endswith(tuple(start for start, _ in _TAGS))


def may_open_thought(template: str) -> bool:
    """Whether a chat template contains such tags at all."""
    return any(start in template for start, _ in _TAGS)
