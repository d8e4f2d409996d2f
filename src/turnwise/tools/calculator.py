"""`CalculatorTool`: arithmetic for models. Nothing is ever evaluated as Python.

An expression is parsed into a syntax tree, and only the kinds of nodes below are computed. What
would make a number too long is refused before it is made: 9**9**9 costs nothing.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from turnwise.errors import ToolError, did_you_mean
from turnwise.tools.base import Tool

Number = int | float

_MAX_CHARACTERS = 1000
_MAX_DEPTH = 60
_MAX_BITS = 10_000  # some three thousand digits
_MAX_PLACES = 300
_SIGNIFICANT_DIGITS = 15  # a float holds these; the next is noise
_REPLACED = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})


class CalculatorTool(Tool):
    """Compute an arithmetic expression, such as (3 + 4) * 2 ** 10 / sqrt(5). It knows + - * / //
    % **, the comparisons, sqrt, exp, log, sin and their kin, abs, round, floor, ceil, min, max,
    sum, factorial, comb, perm, gcd, lcm, and pi, e, tau.
    """

    name = "calculator"
    inline = True  # each operation is bounded, so the whole is

    def execute(self, expression: str) -> Number | bool:
        """Compute.

        Args:
            expression: What to compute.
        """
        return calculate(expression)


def calculate(expression: str) -> Number | bool:
    """Returns the value of an arithmetic expression; floats are rounded to fifteen digits.

    >>> calculate("2 + 2 * 6")
    14
    >>> calculate("0.1 + 0.2")
    0.3
    >>> calculate("9 ** 9 ** 9")
    Traceback (most recent call last):
    turnwise.errors.ToolError: 9 ** 387420489 is too large. Numbers may have up to 3010 digits.
    """
    if len(expression) > _MAX_CHARACTERS:
        raise ToolError(
            f"The expression has {len(expression)} characters, up to {_MAX_CHARACTERS} are taken. "
            "Compute it in parts."
        )
    text = expression.strip().translate(_REPLACED)
    try:
        value = _evaluate(ast.parse(text, mode="eval").body, 0)
    except SyntaxError as error:
        start = (error.offset or 1) - 1
        near = f" near {text[start : start + 12] or text[-12:]!r}" if text else ""
        raise ToolError(
            f"This is not an expression{near}. Write for example (3 + 4) * 2."
        ) from None
    except ZeroDivisionError:
        raise ToolError("It divides by zero.") from None
    except OverflowError:
        raise ToolError("A number in it is too large.") from None
    except (ValueError, RecursionError, MemoryError):
        raise ToolError(
            "The expression cannot be read: it is nested too deeply or has odd characters."
        ) from None
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}") if isinstance(value, float) else value


def _evaluate(node: ast.expr, depth: int) -> Number | bool:
    if depth > _MAX_DEPTH:
        raise ToolError("The expression is nested too deeply. Compute it in parts.")
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return _checked(node.value, "a number")
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            value = _evaluate(operand, depth + 1)
            return -value if isinstance(node.op, ast.USub) else +value
        case ast.BinOp():
            # In a loop, so that a long sum such as 1 + 2 + 3 + ... does not count as nested.
            links = [node]
            while isinstance(links[-1].left, ast.BinOp):
                links.append(links[-1].left)
            value = _evaluate(links[-1].left, depth + 1)
            for link in reversed(links):
                value = _operate(type(link.op), value, _evaluate(link.right, depth + 1))
            return value
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            compare = _COMPARISONS[type(op)]
            return bool(compare(_evaluate(left, depth + 1), _evaluate(right, depth + 1)))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Name(id=name) if name in _FUNCTIONS:
            raise ToolError(f"{name} is a function: write {name}(...).")
        case ast.Name(id=name):
            hint = did_you_mean(name, {**_CONSTANTS, **_FUNCTIONS})
            raise ToolError(f"{name[:40]!r} has no value. Put its number in its place. {hint}")
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            if len(args) == 1 and isinstance(args[0], ast.List | ast.Tuple):
                args = args[0].elts  # max([1, 2]) is max(1, 2)
            return _apply(name, [_evaluate(argument, depth + 1) for argument in args])
        case ast.Tuple():
            raise ToolError("Write numbers without commas: 1000, not 1,000.")
    raise ToolError(
        f"{ast.unparse(node)[:40]!r} is not arithmetic. Use numbers, + - * / // % **, "
        "brackets, and functions such as sqrt(2)."
    )


_OPERATORS: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _operate(kind: type[ast.operator], left: Number, right: Number) -> Number:
    if kind not in _OPERATORS:
        raise ToolError("Only the operators + - * / // % ** are known. For a power write **.")
    symbol, operate = _OPERATORS[kind]
    what = f"{_short(left)} {symbol} {_short(right)}"
    if kind is ast.Pow and isinstance(left, int) and isinstance(right, int) and abs(left) > 1:
        _require_bits(math.log2(abs(left)) * right, what)
    return _checked(operate(left, right), what)


def _apply(name: str, args: list[Number]) -> Number:
    if name not in _FUNCTIONS:
        raise ToolError(f"There is no function {name[:40]!r}. {did_you_mean(name, _FUNCTIONS)}")
    what = f"{name}({', '.join(map(_short, args))})"
    try:
        if name in ("factorial", "comb", "perm"):
            # No factor is above n, and there are as many factors as chosen things.
            n, *others = map(_whole, args)
            chosen = min([*others, n - others[0] if name == "comb" and others else n])
            _require_bits(max(chosen, 0) * n.bit_length(), what)
        return _checked(_FUNCTIONS[name](*args), what)
    except (TypeError, ValueError) as error:
        raise ToolError(f"{what} cannot be computed: {error}.") from None


def _whole(x: Number) -> int:
    if isinstance(x, float) and not x.is_integer():
        raise ValueError(f"{x} is not a whole number")
    return int(x)


def _of_whole(function: Callable[..., int]) -> Callable[..., Number]:
    return lambda *args: function(*map(_whole, args))


def _round(x: Number, places: Number = 0) -> Number:
    digits = _whole(places)
    if abs(digits) > _MAX_PLACES:
        raise ValueError(f"it rounds to {_short(digits)} places")
    return round(x, digits) if digits else round(x)


_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "round": _round,
    "min": lambda *args: min(args),
    "max": lambda *args: max(args),
    "sum": lambda *args: sum(args),
    "ln": math.log,
}
_OF_REALS = (
    math.floor, math.ceil, math.sqrt, math.cbrt, math.exp, math.log, math.log2, math.log10,
    math.sin, math.cos, math.tan, math.asin, math.acos, math.atan, math.atan2, math.hypot,
    math.degrees, math.radians,
)  # fmt: skip
_FUNCTIONS |= {function.__name__: function for function in _OF_REALS}
for _function in (math.factorial, math.comb, math.perm, math.gcd, math.lcm):
    _FUNCTIONS[_function.__name__] = _of_whole(_function)


def _checked(value: Any, what: str) -> Number | bool:
    """Returns a real, finite number that is not too long; else raises a `ToolError`."""
    if isinstance(value, complex):
        raise ToolError(f"{what} is not a real number.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ToolError(f"{what} is too large.")
    if isinstance(value, int):
        _require_bits(value.bit_length(), what)
    number: Number | bool = value
    return number


def _require_bits(num_bits: float, what: str) -> None:
    if num_bits > _MAX_BITS:
        digits = int(_MAX_BITS * math.log10(2))
        raise ToolError(f"{what} is too large. Numbers may have up to {digits} digits.")


def _short(value: Number) -> str:
    if isinstance(value, int) and value.bit_length() > 64:
        return "(a long number)"
    return str(value)
