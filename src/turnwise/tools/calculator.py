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
_MAX_FACTORIAL = 1000
_MAX_PLACES = 300
_SIGNIFICANT_DIGITS = 15  # a float holds these; the next is noise

_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
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
    try:
        value = _evaluate(_parse(expression), 0)
    except ZeroDivisionError:
        raise ToolError("It divides by zero.") from None
    except OverflowError:
        raise ToolError("A number in it is too large.") from None
    except RecursionError:
        raise ToolError("The expression is nested too deeply. Compute it in parts.") from None
    if isinstance(value, float):
        return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    return value


def _parse(expression: str) -> ast.expr:
    if len(expression) > _MAX_CHARACTERS:
        raise ToolError(
            f"The expression has {len(expression)} characters, up to {_MAX_CHARACTERS} are taken. "
            "Compute it in parts."
        )
    text = expression.strip().translate(_REPLACED)
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        where = f" near {_near(text, error)!r}" if error.lineno == 1 and error.offset else ""
        raise ToolError(
            f"This is not an expression{where}. Write for example (3 + 4) * 2."
        ) from None
    except (ValueError, RecursionError, MemoryError):
        raise ToolError(
            "The expression cannot be read: it is nested too deeply or has odd characters."
        ) from None


def _near(text: str, error: SyntaxError) -> str:
    start = max((error.offset or 1) - 1, 0)
    return text[start : start + 12] or text[-12:]


def _evaluate(node: ast.expr, depth: int) -> Number | bool:
    if depth > _MAX_DEPTH:
        raise ToolError("The expression is nested too deeply. Compute it in parts.")
    inner = depth + 1
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return _checked(node.value, "a number")
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            value = _evaluate(operand, inner)
            return -value if isinstance(node.op, ast.USub) else +value
        case ast.BinOp():
            return _chain(node, inner)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            compare = _COMPARISONS[type(op)]
            return bool(compare(_evaluate(left, inner), _evaluate(right, inner)))
        case ast.Name(id=name):
            return _constant(name)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _apply(name, [_evaluate(argument, inner) for argument in _flat(args)])
        case ast.Tuple():
            raise ToolError("Write numbers without commas: 1000, not 1,000.")
    raise ToolError(
        f"{ast.unparse(node)[:40]!r} is not arithmetic. Use numbers, + - * / // % **, "
        f"brackets, and functions such as sqrt(2)."
    )


def _chain(node: ast.BinOp, depth: int) -> Number:
    """Evaluates 1 + 2 + 3 + ... in a loop, so that a long sum does not count as nested."""
    links = [node]
    while isinstance(links[-1].left, ast.BinOp):
        links.append(links[-1].left)
    value = _evaluate(links[-1].left, depth)
    for link in reversed(links):
        value = _operate(type(link.op), value, _evaluate(link.right, depth))
    return value


def _flat(args: list[ast.expr]) -> list[ast.expr]:
    """Turns max([1, 2]) into max(1, 2)."""
    if len(args) == 1 and isinstance(args[0], ast.List | ast.Tuple):
        return args[0].elts
    return args


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
    if kind is ast.BitXor:
        raise ToolError("^ is no operator here. For a power write **, such as 2 ** 10.")
    if kind not in _OPERATORS:
        raise ToolError("Only the operators + - * / // % ** are known.")
    symbol, operate = _OPERATORS[kind]
    what = f"{_short(left)} {symbol} {_short(right)}"
    if kind is ast.Pow and isinstance(left, int) and isinstance(right, int) and abs(left) > 1:
        _require_bits(math.log2(abs(left)) * right, what)
    return _checked(operate(left, right), what)


def _constant(name: str) -> Number:
    if name in _FUNCTIONS:
        raise ToolError(f"{name} is a function: write {name}(...).")
    if name not in _CONSTANTS:
        hint = did_you_mean(name, {**_CONSTANTS, **_FUNCTIONS})
        raise ToolError(f"{name[:40]!r} has no value. Put its number in its place. {hint}")
    return _CONSTANTS[name]


def _apply(name: str, args: list[Number]) -> Number:
    if name not in _FUNCTIONS:
        raise ToolError(f"There is no function {name[:40]!r}. {did_you_mean(name, _FUNCTIONS)}")
    what = f"{name}({', '.join(map(_short, args))})"
    try:
        return _checked(_FUNCTIONS[name](*args), what)
    except (TypeError, ValueError) as error:
        raise ToolError(f"{what} cannot be computed: {error}.") from None


def _factorial(n: Number) -> int:
    if n > _MAX_FACTORIAL:
        raise ToolError(f"factorial({_short(n)}) is too large: up to {_MAX_FACTORIAL} is computed.")
    return math.factorial(_whole(n))


def _choices(function: Callable[[int, int], int], name: str) -> Callable[..., Number]:
    def bounded(n: Number, k: Number) -> int:
        total, chosen = _whole(n), _whole(k)
        fewer = min(chosen, total - chosen) if name == "comb" else chosen
        _require_bits(max(fewer, 0) * total.bit_length(), f"{name}({_short(n)}, {_short(k)})")
        return function(total, chosen)

    return bounded


def _round(x: Number, places: Number = 0) -> Number:
    digits = _whole(places)
    if abs(digits) > _MAX_PLACES:
        raise ValueError(f"it rounds to {_short(digits)} places")
    return round(x, digits) if digits else round(x)


def _whole(x: Number) -> int:
    if isinstance(x, float) and not x.is_integer():
        raise ValueError(f"{x} is not a whole number")
    return int(x)


def _log(x: Number, base: Number = math.e) -> float:
    return math.log(x) if base == math.e else math.log(x, base)


_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "round": _round,
    "floor": math.floor,
    "ceil": math.ceil,
    "min": lambda *args: min(args),
    "max": lambda *args: max(args),
    "sum": lambda *args: sum(args),
    "sqrt": math.sqrt,
    "cbrt": math.cbrt,
    "exp": math.exp,
    "log": _log,
    "ln": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "atan2": math.atan2,
    "hypot": math.hypot,
    "degrees": math.degrees,
    "radians": math.radians,
    "factorial": _factorial,
    "comb": _choices(math.comb, "comb"),
    "perm": _choices(math.perm, "perm"),
    "gcd": lambda *args: math.gcd(*map(_whole, args)),
    "lcm": lambda *args: math.lcm(*map(_whole, args)),
}


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
