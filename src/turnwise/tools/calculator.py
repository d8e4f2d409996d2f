"""`CalculatorTool`: arithmetic for models. Nothing is ever evaluated as Python.

An expression is parsed into a syntax tree, and only the kinds of nodes below are computed. What
would make a number too long is refused before it is made: 9**9**9 costs nothing.
"""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from turnwise.errors import ToolError, did_you_mean
from turnwise.tools.base import Tool

Number = int | float

_MAX_CHARACTERS = 1000
_MAX_BITS = 10_000  # some three thousand digits
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
    turnwise.errors.ToolError: A number in it is too large: 3010 digits are the most.
    """
    if len(expression) > _MAX_CHARACTERS:
        raise ToolError(f"The expression has more than {_MAX_CHARACTERS} characters.")
    try:
        tree = ast.parse(expression.strip().translate(_REPLACED), mode="eval")
        value = _evaluate(tree.body)
    except ZeroDivisionError:
        raise ToolError("It divides by zero.") from None
    except OverflowError:
        digits = int(_MAX_BITS * math.log10(2))
        raise ToolError(f"A number in it is too large: {digits} digits are the most.") from None
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError(
            f"{ascii(expression)[:60]} cannot be computed: {str(error)[:100]}. Write for example "
            "(3 + 4) * 2 ** 10, with numbers such as 1000, not 1,000."
        ) from None
    # A float holds fifteen digits; the next is noise.
    return float(f"{value:.15g}") if isinstance(value, float) else value


def _evaluate(node: ast.expr) -> Number | bool:
    value: Any
    match node:
        case ast.Constant(value=bool() | int() | float()):
            value = node.value
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            value = _OPERATORS[type(op)](_evaluate(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            value = _OPERATORS[type(op)](_evaluate(left), _evaluate(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            value = _OPERATORS[type(op)](_evaluate(left), _evaluate(right))
        case ast.Name(id=name) if name in _CONSTANTS:
            value = _CONSTANTS[name]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            if len(args) == 1 and isinstance(args[0], ast.List | ast.Tuple):
                args = args[0].elts  # max([1, 2]) is max(1, 2)
            value = _FUNCTIONS[name](*map(_evaluate, args))
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            hint = did_you_mean(name, {**_CONSTANTS, **_FUNCTIONS})
            raise ToolError(f"{name[:40]!r} is no number and no function. {hint}")
        case _:
            use = "numbers without commas, + - * / // %, ** for a power, brackets, sqrt(2)"
            raise ToolError(f"{ast.unparse(node)[:40]!r} is not arithmetic. Use {use}.")
    if isinstance(value, complex):
        raise ValueError("the result is not a real number")
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise OverflowError
    result: Number | bool = value
    return result


def _power(base: Number, exponent: Number) -> Any:
    is_whole = isinstance(base, int) and isinstance(exponent, int)
    if is_whole and abs(base) > 1 and math.log2(abs(base)) * exponent > _MAX_BITS:
        raise OverflowError
    return base**exponent


def _whole_number_function(name: str) -> Callable[..., int]:
    """Makes a function take whole floats too, and refuse a product that would be too long."""

    def compute(*args: Number) -> int:
        if any(arg != int(arg) for arg in args):
            raise ValueError(f"{name} takes whole numbers")
        numbers = [int(arg) for arg in args]
        if name in ("factorial", "comb", "perm") and numbers:
            most, num_factors = numbers[0], numbers[-1]
            num_bits = num_factors * most.bit_length()
            if name == "comb":  # to choose k of n is to leave n - k, and 2**n is never reached
                num_bits = min(num_bits, (most - num_factors) * most.bit_length(), most)
            if num_bits > _MAX_BITS:
                raise OverflowError
        value: int = getattr(math, name)(*numbers)
        return value

    return compute


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_OF_REALS = (
    "floor", "ceil", "sqrt", "cbrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin",
    "acos", "atan", "atan2", "hypot", "degrees", "radians",
)  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in _OF_REALS},
    **{name: _whole_number_function(name) for name in ("factorial", "comb", "perm", "gcd", "lcm")},
    "abs": abs,
    "round": lambda x, places=0: round(x, max(-300, min(300, int(places))) or None),
    "min": lambda *args: min(args),
    "max": lambda *args: max(args),
    "sum": lambda *args: sum(args),
    "ln": math.log,
}
