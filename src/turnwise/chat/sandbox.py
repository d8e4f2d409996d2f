"""Compiles chat templates so that a rendering is bounded in memory and time.

A template is code from the author of a model. Whatever it computes is charged to one allowance per
rendering before it is computed: the characters of a text, the elements of a list, the blocks that
run. The sum bounds memory and time, and it is the same on every machine. Filters and methods whose
cost is not known are not offered.
"""

from __future__ import annotations

import functools
import importlib
import re
import threading
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.environment import Template
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

_ALLOWANCE = 50_000_000
_ALLOWANCE_PER_CHARACTER = 32
"""Of messages and tools. Templates copy each text less than ten times."""
_ALLOWANCE_PER_PAIR = 400
"""Of messages: some templates look through all later messages at each one, such as gpt-oss's."""
_PER_OPERATION = 20
_PER_ELEMENT = 20
_TOO_MUCH = 2**62
_SCANNED_AT_ONCE = 16
"""Characters that are compared or searched in the time in which one is copied."""
_LONGEST_TEMPLATE = 300_000
"""Characters; those of models have up to 30,000."""
_MOST_BITS = 4096
_WIDTH = re.compile(r"\d{1,20}")


class TooLarge(Exception):
    """A template would compute more than it may."""


class _Spent(threading.local):
    """What the rendering in this thread may still compute."""

    left = 0


_spent = _Spent()


def render(template: Template, messages: Any, tools: Any, others: Mapping[str, Any]) -> str:
    """Render a compiled template. Raises `TooLarge`, or what the template itself raises."""
    _spent.left = _TOO_MUCH
    _charge_written((messages, tools))
    written = _TOO_MUCH - _spent.left
    _spent.left = _ALLOWANCE + _ALLOWANCE_PER_CHARACTER * written
    _spent.left += _ALLOWANCE_PER_PAIR * len(messages) ** 2
    return template.render(messages=messages, tools=tools, **others)


def compile_template(text: str) -> Template:
    """Compile a chat template as transformers does, with bounds. The last ones are kept."""
    if len(text) > _LONGEST_TEMPLATE:
        raise TooLarge(f"it has {len(text):,} characters, at most {_LONGEST_TEMPLATE:,} are read")
    return _compile(text)


@functools.lru_cache(maxsize=16)
def _compile(text: str) -> Template:
    return _environment().from_string(text)


@functools.cache
def _environment() -> BoundedEnvironment:
    """Return transformers' environment of chat templates with bounds."""
    module: Any = importlib.import_module("transformers.utils.chat_template_utils")
    unbounded = module._compile_jinja_template("").environment
    bounded = BoundedEnvironment(
        trim_blocks=unbounded.trim_blocks,
        lstrip_blocks=unbounded.lstrip_blocks,
        extensions=[type(extension) for extension in unbounded.extensions.values()],
        # Nothing is computed while compiling, where no allowance limits it; `finalize` takes the
        # context, so that constants in the output are not either.
        optimized=False,
        finalize=_charge_output,
    )
    bounded.globals = {n: v for n, v in unbounded.globals.items() if n != "lipsum"}
    bounded.filters = {
        name: _bounded_filter(name, unbounded.filters[name]) for name in (*_SHALLOW, *_WRITING)
    }
    bounded.filters |= {"turnwise_step": _charge_step, "turnwise_copied": _charge_copied}
    bounded.filters |= {"turnwise_compared": _charge_compared, "turnwise_searched": _charge_scanned}
    bounded.filters |= {"turnwise_written": _charge_written}
    bounded.tests |= {name: _bounded_test(unbounded.tests[name]) for name in _COMPARING_TESTS}
    return bounded


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox of chat templates, in which operators and calls are charged."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_ChargedNodes().visit(source), *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            _charge(_shallow_size(left) + _shallow_size(right))
        elif operator == "%" and isinstance(left, str):
            _charge_format(left, "%", right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(right, 0))
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
            else:
                _charge(_shallow_size(left) * _factor(right) + _shallow_size(right) * _factor(left))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        receiver = getattr(__obj, "__self__", None)
        args = tuple(_read_generator(argument) for argument in args)
        if isinstance(receiver, str):
            cost = _TEXT_METHODS.get(__obj.__name__)
            if cost is None:
                raise TooLarge(f"it calls {__obj.__name__!r} of a text, which is not offered")
            named = {k: v for k, v in kwargs.items() if k not in ("_loop_vars", "_block_vars")}
            _charge(len(receiver) + max(cost(receiver, *args, **named), 0))
        elif isinstance(receiver, list | tuple | dict):
            if __obj.__name__ in ("index", "count"):
                _charge_compared(receiver)
            elif __obj.__name__ not in ("get", "items", "keys", "values", "copy"):
                raise TooLarge(f"it calls {__obj.__name__!r} of a list, which is not offered")
        elif isinstance(receiver, LoopContext):  # `loop.changed` compares its arguments
            _charge_compared(args)
        elif isinstance(receiver, int | float | bytes | range | set | frozenset):
            raise TooLarge(f"it calls {__obj.__name__!r} of a number, which is not offered")
        elif args and __obj is __self.globals["strftime_now"]:
            _charge(sum(map(int, _WIDTH.findall(str(args[0])))))
        result = super().call(__context, __obj, *args, **kwargs)
        _charge(_shallow_size(result))
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        write = super().wrap_str_format(value)
        if write is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            text: str = value.__self__
            if re.search(r"\{[^{}]*[:!][^{}]*\{", text):
                raise TooLarge("it formats with a computed width, which is not offered")
            _charge_format(text, "{", (args, kwargs))
            return write(*args, **kwargs)

        return bounded


class _ChargedNodes(NodeTransformer):
    """Adds charges to a template's syntax tree where values are made without a call."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        for body in (getattr(node, "body", None), getattr(node, "else_", None)):
            if isinstance(body, list):
                amount = _PER_OPERATION + sum(map(_block_cost, body))
                step = _filtered(nodes.Const(amount), "turnwise_step", node)
                body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.test is not None:  # it runs for each element, the body only for those that pass
            step = _filtered(nodes.Const(_block_cost(node.test)), "turnwise_step", node)
            node.test = nodes.And(step, node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filtered(operand, "turnwise_written", node) for operand in node.nodes]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        sides: list[Any] = [node, *node.ops]
        if any(isinstance(side.expr, nodes.Const) for side in sides) and len(sides) == 2:
            if node.ops[0].op in ("in", "notin"):
                node.ops[0].expr = _filtered(node.ops[0].expr, "turnwise_searched", node)
        else:
            for side in sides:
                side.expr = _filtered(side.expr, "turnwise_compared", node)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        is_slice = isinstance(node.arg, nodes.Slice)
        return _filtered(node, "turnwise_copied", node) if is_slice else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), "turnwise_copied", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), "turnwise_copied", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        # Tuples can be keys, and a hash reads all that they hold: what is nested is counted whole.
        return _filtered(node, "turnwise_written", node) if node.ctx == "load" else node


def _block_cost(node: nodes.Node) -> int:
    """Return the cost of running a node once: its operations and literal texts, without blocks."""
    if isinstance(node, nodes.TemplateData):
        return len(node.data)
    children = node.iter_child_nodes(exclude=("body", "else_"))
    return _PER_OPERATION + sum(map(_block_cost, children))


def _filtered(node: Any, name: str, at: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=at.lineno)


def _charge(amount: int) -> None:
    left = _spent.left = _spent.left - amount - _PER_OPERATION
    if left < 0:
        raise TooLarge(
            "it makes longer texts or lists, or runs more often, than any conversation needs"
        )


def _charge_step(amount: int) -> bool:
    _charge(max(amount, 0))  # a template could use this filter itself
    return True


def _charge_copied(value: Any) -> Any:
    _charge(_shallow_size(value))
    return value


def _charge_scanned(value: Any) -> Any:
    _charge(_shallow_size(value) // _SCANNED_AT_ONCE)
    return value


def _charge_written(value: Any, num_at_once: int = 1) -> Any:
    """Charge for what `str` of a value reads and writes, also inside lists and mappings."""
    if type(value) is str:
        _charge(len(value) // num_at_once)
        return value
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str | bytes):
            _charge(len(item) // num_at_once)
        elif isinstance(item, dict):
            _charge(_PER_ELEMENT * len(item))
            waiting += item
            waiting += item.values()
        elif isinstance(item, list | tuple | KeysView | ValuesView | ItemsView):
            _charge(_PER_ELEMENT * len(item))
            waiting += item
        elif isinstance(item, Namespace):
            waiting.append(object.__getattribute__(item, "_Namespace__attrs"))
        else:
            _charge(0)
    return value


def _charge_compared(value: Any) -> Any:
    return _charge_written(value, _SCANNED_AT_ONCE)


@pass_context
def _charge_output(_context: Any, value: Any) -> Any:
    return _charge_written(value)


def _charge_format(text: str, mark: str, arguments: Any) -> None:
    """Charge for `%` or `{}` formatting: a mark may write all arguments, a digit be a width."""
    if mark == "%" and re.search(r"%[^%a-zA-Z]*\*", text):
        raise TooLarge("it formats with a computed width, which is not offered")
    before = _spent.left
    _charge_written(arguments)
    _charge(len(text) + sum(map(int, _WIDTH.findall(text))))
    _charge((before - _spent.left) * text.count(mark))


def _read_generator(value: Any) -> Any:
    """Return what a filter such as `map` yields as a list, whose length is known."""
    return list(value) if isinstance(value, Iterator) else value


def _shallow_size(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    return _PER_ELEMENT * len(value) if isinstance(value, list | tuple | dict | range) else 0


def _factor(value: Any) -> int:
    return max(value, 0) if isinstance(value, int) else 0


def _check_bits(size: int) -> None:
    if size > _MOST_BITS:
        raise TooLarge(f"it computes a number of {size:,} bits")


# -- filters, tests and methods --------------------------------------------------------------------


def _replaced(text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> int:
    return (len(str(text)) // max(len(str(old)), 1) + 1) * len(str(new))


def _stripped(text: Any, chars: Any = None) -> int:
    return len(str(text)) * len(chars or "") // _SCANNED_AT_ONCE


def _indented(text: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    return len(str(text).splitlines()) * (len(width) if isinstance(width, str) else width)


# The arguments have jinja's names, by which a template may pass them.
def _joined(elements: Any, d: Any = "", *_: Any, **__: Any) -> int:
    return len(elements) * len(str(d))


def _as_json(
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> int:
    before = _spent.left
    _charge_written(value)
    size = before - _spent.left
    width, depth = len(indent) if isinstance(indent, str) else indent or 0, 0
    level = [value] if width else []
    while level:
        depth += 1
        lists = [list(v.values()) if isinstance(v, dict) else v for v in level]
        level = [item for v in lists if isinstance(v, list | tuple) for item in v]
    return size * (5 * bool(ensure_ascii) + width * depth + sum(map(len, separators or ())))


def _rounded(_value: Any, precision: int = 0, *_: Any, **__: Any) -> int:
    return 0 if abs(precision) < 300 else _TOO_MUCH


def _summed(_elements: Any, attribute: Any = None, start: Any = 0) -> int:
    return 0 if isinstance(start, int | float) else _TOO_MUCH  # lists would be copied each time


def _as_integer(value: Any, *_: Any, **__: Any) -> int:
    return 0 if isinstance(value, int | float) or len(str(value)) < _MOST_BITS else _TOO_MUCH


_SHALLOW = (
    "abs", "attr", "count", "d", "default", "first", "float", "int", "items", "last", "length",
    "list", "map", "reject", "rejectattr", "reverse", "round", "safe", "select", "selectattr",
    "sum",
)  # fmt: skip
"""Filters that do not read the texts in their input."""
_WRITING = (
    "capitalize", "center", "dictsort", "e", "escape", "format", "groupby", "indent", "join",
    "lower", "max", "min", "replace", "sort", "string", "title", "tojson", "trim", "truncate",
    "unique", "upper", "urlencode", "wordcount",
)  # fmt: skip
"""Filters whose time and result are in proportion to all that is in their input."""
_FILTER_COSTS: dict[str, Callable[..., int]] = {
    "center": lambda value, width=80: width,
    "indent": _indented,
    "int": _as_integer,
    "join": _joined,
    "list": lambda value: _PER_ELEMENT * len(value) if isinstance(value, str) else 0,
    "replace": _replaced,
    "round": _rounded,
    "sum": _summed,
    "tojson": _as_json,
    "trim": _stripped,
}
"""What else some of them cost, from their arguments."""
_COMPARING_TESTS = (
    "==", "!=", "<", "<=", ">", ">=", "eq", "equalto", "ne", "lt", "lessthan", "le", "gt",
    "greaterthan", "ge", "in", "lower", "upper",
)  # fmt: skip


def _no_more(*_: Any, **__: Any) -> int:
    return 0


def _wide(_text: str, width: int, *_: Any) -> int:
    return width


def _pieces(text: str, *_: Any, **__: Any) -> int:
    return 4 * len(text)


_TEXT_METHODS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(
        (
            "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha",
            "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric",
            "isprintable", "isspace", "istitle", "isupper", "lower", "partition", "removeprefix",
            "removesuffix", "rfind", "rindex", "rpartition", "startswith", "swapcase", "title",
            "upper",
        ),
        _no_more,
    ),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _wide),
    **dict.fromkeys(("split", "rsplit", "splitlines"), _pieces),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), _stripped),
    "expandtabs": lambda text, tabsize=8: text.count("\t") * tabsize,
    "join": lambda separator, elements: _joined(_charge_written(elements), separator),
    "replace": _replaced,
}  # fmt: skip
"""What a method costs in addition to the length of its text."""


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    charge_input = _charge_copied if name in _SHALLOW else _charge_written
    num_passed = int(hasattr(function, "jinja_pass_arg"))  # the context comes first
    cost = _FILTER_COSTS.get(name)

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        passed = args[:num_passed]
        given = [_read_generator(argument) for argument in args[num_passed:]]
        for value in (*given, *kwargs.values()):
            charge_input(value)
        if name == "format":
            _charge_format(str(given[0]), "%", (given[1:], kwargs))
        elif cost is not None:
            _charge(max(cost(*given, **kwargs), 0))
        result = function(*passed, *given, **kwargs)
        _charge(_shallow_size(result))
        return result

    return bounded


def _bounded_test(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def bounded(*args: Any) -> Any:
        for value in args:
            _charge_compared(value)
        return function(*args)

    return bounded
