"""What a template writes around messages, found out once: rendering costs more than all the rest.

Most templates put a message's text between two pieces that depend on the roles alone. Whether one
does is found by rendering made-up texts of many kinds; whether it may look for something in the
text (some cut away `</think>`) is read from its source, and a text that holds such a thing is
rendered in full. So is everything for which there is doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from turnwise.chat.ownership import ROLES, OwnedText
from turnwise.errors import ConfigError
from turnwise.plain_mode import is_plain

Named: TypeAlias = tuple[str, str | None]
Shape: TypeAlias = tuple[Named, ...]
"""Role and name of each message."""

_MOST_SHAPES = 256
# Each place is tried out with each probe.
_MOST_MESSAGES = 8
_MARK = "turnwiseFrame{}x7f3a"
# Trimmed, escaped, re-cased, cut or compared: a template that does any of it is found out by these.
_PROBES = (
    "",
    "0",
    "None",
    " ",
    "\n",
    "  both sides \t",
    "\n\nlines\n\n  and lines\n",
    "<b>&amp;\"quotes\" 'too' \\n {{ x }} {% y %} </s> [INST] <think> a </think> b",
    '{"tool": "f", "arguments": {"x": [1, 2.5, null, true]}}',
    "MiXeD Case Äöß ﬁ é e\u0301 \u200b🍵",
    "long " * 2000,
)


@dataclass(frozen=True, slots=True)
class Frame:
    """What a template writes around the texts of messages, and its control tokens."""

    pieces: tuple[str, ...]
    is_trimmed: tuple[bool, ...]
    """For each text, whether the template takes away the white space around it."""
    controls: tuple[int, ...]

    def filled(self, texts: Sequence[str]) -> str:
        written = self.pieces[0]
        for text, is_trimmed, piece in zip(texts, self.is_trimmed, self.pieces[1:], strict=True):
            written += (text.strip() if is_trimmed else text) + piece
        return written


class Frames:
    """The pieces around the texts of messages, for a template and a way to render with it.

    `render` gives the text that the template writes for messages, `render_owned` also who wrote
    which part of it, `controls` the control tokens of a text.
    """

    def __init__(
        self,
        template: str,
        render: Callable[[Sequence[Any]], str],
        render_owned: Callable[[Sequence[Any]], OwnedText],
        controls: Callable[[str], tuple[int, ...]],
    ) -> None:
        self._template = template
        self._render = render
        self._render_owned = render_owned
        self._controls = controls
        self._frames: dict[Shape, Frame | None] = {}

    def write(self, messages: Sequence[Any]) -> OwnedText:
        """What the template writes for these messages, whose contents are strings."""
        if is_plain("chat.frames") or self._watched is None or len(messages) > _MOST_MESSAGES:
            return self._render_owned(messages)
        shape: Shape = tuple([(m["role"], m.get("name")) for m in messages])
        if shape not in self._frames:
            is_full = len(self._frames) >= _MOST_SHAPES
            if is_full or any(m.keys() - {"role", "name", "content"} for m in messages):
                return self._render_owned(messages)
            self._frames[shape] = self._find_frame(shape)
        frame = self._frames[shape]
        if frame is None:
            return self._render_owned(messages)
        text, spans = frame.pieces[0], []
        for number, message in enumerate(messages, 1):
            content = message["content"]
            if len(message) > 2 and (len(message) > 3 or message.get("name") is None):
                return self._render_owned(messages)
            for literal in self._watched:
                if literal in content:
                    return self._render_owned(messages)
            if frame.is_trimmed[number - 1]:
                content = content.strip()
            spans.append((len(text), len(text) + len(content)))
            text += content + frame.pieces[number]
        return OwnedText(text, tuple(spans), frame.controls)

    @cached_property
    def _watched(self) -> tuple[str, ...] | None:
        """Texts that the template may look for in a message; None: it cannot be told."""
        from jinja2 import Environment, TemplateError

        if "strftime_now" in self._template:  # what it writes changes by itself
            return None
        try:
            tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(self._template)
        except TemplateError:  # an extension of Jinja that only its own renderer knows
            return None
        return tuple({text for text in _looked_for(tree) if text})

    def _find_frame(self, shape: Shape) -> Frame | None:
        """The pieces before, between and after the texts; None if that is not all there is."""
        if any(role not in ROLES for role, _ in shape):
            return None  # a role that nobody knows is a text like others
        marks = [_MARK.format(i) for i in range(len(shape))]
        try:
            rest = self._render(_messages(shape, marks))
            pieces = []
            for mark in marks:
                if rest.count(mark) != 1:
                    return None
                before, _, rest = rest.partition(mark)
                pieces.append(before)
            pieces.append(rest)
            # Names stand in the pieces; they must not have become control tokens there.
            inert = [(role, None if name is None else "n") for role, name in shape]
            controls = self._controls(self._render(_messages(inert, marks)))
            is_trimmed = self._find_trimmed(shape, marks)
            frame = Frame(tuple(pieces), is_trimmed, controls)
            if self._controls(frame.filled(marks)) != controls:
                return None
            for texts in _probe_texts(len(shape)):
                if self._render(_messages(shape, texts)) != frame.filled(texts):
                    return None
        except ConfigError:  # the template refuses some of them
            return None
        return frame

    def _find_trimmed(self, shape: Shape, marks: Sequence[str]) -> tuple[bool, ...]:
        padded = [f" {mark}\n" for mark in marks]
        text = self._render(_messages(shape, padded))
        return tuple(padding not in text for padding in padded)


def _messages(shape: Sequence[Named], texts: Sequence[str]) -> list[dict[str, str]]:
    return [
        {"role": role, "content": text} if name is None
        else {"role": role, "name": name, "content": text}
        for (role, name), text in zip(shape, texts, strict=True)
    ]  # fmt: skip


def _probe_texts(num_messages: int) -> Iterator[list[str]]:
    """Each probe in each place with ordinary neighbours, and in all places at once."""
    for probe in _PROBES:
        yield [probe] * num_messages
        for place in range(num_messages if num_messages > 1 else 0):
            texts = [f"text {i}" for i in range(num_messages)]
            texts[place] = probe
            yield texts


def _looked_for(tree: Any) -> Iterator[str]:
    """Strings in a template's source that are compared with something or passed to something.

    Roles are left out: they are part of the shape. Strings that are only written are no danger.
    """
    from jinja2 import nodes

    for compare in tree.find_all(nodes.Compare):
        sides = [compare.expr, *(operand.expr for operand in compare.ops)]
        if not any(_is_role(side) for side in sides):
            yield from _strings(sides)
    for call in tree.find_all((nodes.Call, nodes.Filter, nodes.Test)):
        if _selects_by_role(call):
            continue
        keywords = [keyword.value for keyword in call.kwargs or ()]
        yield from _strings([*(call.args or ()), *keywords])


def _is_role(node: Any) -> bool:
    from jinja2 import nodes

    if isinstance(node, nodes.Getattr):
        return bool(node.attr == "role")
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "role"
    return False


def _selects_by_role(call: Any) -> bool:
    """`messages | selectattr("role", "equalto", "user")`"""
    from jinja2 import nodes

    names = ("selectattr", "rejectattr", "groupby")
    if not isinstance(call, nodes.Filter) or call.name not in names or not call.args:
        return False
    return isinstance(call.args[0], nodes.Const) and call.args[0].value == "role"


def _strings(parts: Sequence[Any]) -> Iterator[str]:
    from jinja2 import nodes

    for part in parts:
        constants = [part] if isinstance(part, nodes.Const) else part.find_all(nodes.Const)
        for constant in constants:
            if isinstance(constant.value, str):
                yield constant.value
