"""Caches the text that a template writes around message contents, since rendering is slow.

Most templates put a message's content between two literal texts that depend on the roles alone.
Whether a template does so is checked by rendering probe texts of many kinds. Whether it searches
the content for something (some cut away `</think>`) is read from its source: a content with such a
string is rendered in full, as is everything else that is in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from turnwise.chat.ownership import ROLES, RenderedText
from turnwise.errors import ConfigError

Named: TypeAlias = tuple[str, str | None]
Shape: TypeAlias = tuple[Named, ...]
"""Role and name of each message."""

_MOST_SHAPES = 256
# Each position is tried with each probe.
_MOST_MESSAGES = 8
_MARK = "turnwiseLayout{}x7f3a"
# These reveal a template that trims, escapes, changes case, cuts or compares.
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
class Layout:
    """The literal text around the contents of some messages, and its control tokens."""

    pieces: tuple[str, ...]
    is_trimmed: tuple[bool, ...]
    """For each content, whether the template strips white space around it."""
    controls: tuple[int, ...]

    def filled(self, texts: Sequence[str]) -> str:
        written = self.pieces[0]
        for text, is_trimmed, piece in zip(texts, self.is_trimmed, self.pieces[1:], strict=True):
            written += (text.strip() if is_trimmed else text) + piece
        return written


class LayoutCache:
    """Renders messages with cached layouts: `render` has the results of `render_with_spans`.

    `render_text` returns the text that the template writes for messages, `render_with_spans` also
    the spans that the template did not write, `controls` the control tokens of a text.
    """

    def __init__(
        self,
        template: str,
        render_text: Callable[[Sequence[Any]], str],
        render_with_spans: Callable[[Sequence[Any]], RenderedText],
        controls: Callable[[str], tuple[int, ...]],
    ) -> None:
        self._template = template
        self._render_text = render_text
        self._render_with_spans = render_with_spans
        self._controls = controls
        self._layouts: dict[Shape, Layout | None] = {}

    def render(self, messages: Sequence[Any]) -> RenderedText:
        """Return what the template writes for these messages, whose contents are strings."""
        if self._watched is None or len(messages) > _MOST_MESSAGES:
            return self._render_with_spans(messages)
        shape: Shape = tuple([(m["role"], m.get("name")) for m in messages])
        if shape not in self._layouts:
            is_full = len(self._layouts) >= _MOST_SHAPES
            if is_full or any(m.keys() - {"role", "name", "content"} for m in messages):
                return self._render_with_spans(messages)
            self._layouts[shape] = self._find_layout(shape)
        layout = self._layouts[shape]
        if layout is None:
            return self._render_with_spans(messages)
        text, spans = layout.pieces[0], []
        for number, message in enumerate(messages, 1):
            content = message["content"]
            if len(message) > 2 and (len(message) > 3 or message.get("name") is None):
                return self._render_with_spans(messages)
            for literal in self._watched:
                if literal in content:
                    return self._render_with_spans(messages)
            if layout.is_trimmed[number - 1]:
                content = content.strip()
            spans.append((len(text), len(text) + len(content)))
            text += content + layout.pieces[number]
        return RenderedText(text, tuple(spans), layout.controls)

    @cached_property
    def _watched(self) -> tuple[str, ...] | None:
        """Strings that the template may search contents for; None if that is unknown."""
        from jinja2 import Environment, TemplateError

        if "strftime_now" in self._template:  # the output changes with the date
            return None
        try:
            tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(self._template)
        except TemplateError:  # an extension that only the tokenizer's renderer knows
            return None
        return tuple({text for text in _looked_for(tree) if text})

    def _find_layout(self, shape: Shape) -> Layout | None:
        """Return the layout; None if the template does more than write the contents."""
        if any(role not in ROLES for role, _ in shape):
            return None  # an unknown role is untrusted text
        marks = [_MARK.format(i) for i in range(len(shape))]
        try:
            rest = self._render_text(_messages(shape, marks))
            pieces = []
            for mark in marks:
                if rest.count(mark) != 1:
                    return None
                before, _, rest = rest.partition(mark)
                pieces.append(before)
            pieces.append(rest)
            # Names are part of the literal text; they must not have become control tokens there.
            inert = [(role, None if name is None else "n") for role, name in shape]
            controls = self._controls(self._render_text(_messages(inert, marks)))
            is_trimmed = self._find_trimmed(shape, marks)
            layout = Layout(tuple(pieces), is_trimmed, controls)
            if self._controls(layout.filled(marks)) != controls:
                return None
            for texts in _probe_texts(len(shape)):
                if self._render_text(_messages(shape, texts)) != layout.filled(texts):
                    return None
        except ConfigError:  # the template refuses some of them
            return None
        return layout

    def _find_trimmed(self, shape: Shape, marks: Sequence[str]) -> tuple[bool, ...]:
        padded = [f" {mark}\n" for mark in marks]
        text = self._render_text(_messages(shape, padded))
        return tuple(padding not in text for padding in padded)


def _messages(shape: Sequence[Named], texts: Sequence[str]) -> list[dict[str, str]]:
    return [
        {"role": role, "content": text} if name is None
        else {"role": role, "name": name, "content": text}
        for (role, name), text in zip(shape, texts, strict=True)
    ]  # fmt: skip


def _probe_texts(num_messages: int) -> Iterator[list[str]]:
    """Yield each probe at each position with ordinary neighbours, and at all positions."""
    for probe in _PROBES:
        yield [probe] * num_messages
        for place in range(num_messages if num_messages > 1 else 0):
            texts = [f"text {i}" for i in range(num_messages)]
            texts[place] = probe
            yield texts


def _looked_for(tree: Any) -> Iterator[str]:
    """Yield the strings in a template's source that are compared or passed as arguments.

    Roles are left out: they are part of the shape. Strings that are only written do no harm.
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
    """Return whether this is like `messages | selectattr("role", "equalto", "user")`."""
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
