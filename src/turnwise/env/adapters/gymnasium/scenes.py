"""Observations that need more than names for their numbers: maps are drawn, states decoded."""

from __future__ import annotations

from typing import Any, TypeAlias

Env: TypeAlias = Any
"""A `gymnasium.Env`, unwrapped."""


def _draw(cells: Any, place: tuple[int, int]) -> str:
    """A map of letters, with the player as @."""
    return "\n".join(
        " ".join("@" if (r, c) == place else cell for c, cell in enumerate(row))
        for r, row in enumerate(cells)
    )


def frozen_lake(env: Env, state: int) -> str:
    row, column = divmod(int(state), env.ncol)
    cells = [[cell.decode() for cell in line] for line in env.desc]
    where = {"H": "in a hole", "G": "at the goal"}.get(cells[row][column], "on ice")
    return f"You are {where}, row {row + 1}, column {column + 1}.\n{_draw(cells, (row, column))}"


def cliff(env: Env, state: int) -> str:
    num_rows, num_columns = env.shape
    row, column = divmod(int(state), num_columns)
    cells = [["."] * num_columns for _ in range(num_rows)]
    cells[-1] = ["S", *["C"] * (num_columns - 2), "G"]
    return f"You are in row {row + 1}, column {column + 1}.\n{_draw(cells, (row, column))}"


_STANDS = ("Red", "Green", "Yellow", "Blue")


def taxi(env: Env, state: int) -> str:
    row, column, passenger, destination = env.decode(int(state))
    stands = [
        f"{n} (row {r + 1}, column {c + 1})" for n, (r, c) in zip(_STANDS, env.locs, strict=True)
    ]
    cells = [[cell.decode() for cell in line] for line in env.desc]
    cells[1 + row][1 + 2 * column] = "@"
    return "\n".join(
        [
            f"Taxi: row {row + 1}, column {column + 1}.",
            f"Passenger: {'in the taxi' if passenger == 4 else 'at ' + stands[passenger]}.",
            f"Destination: {stands[destination]}.",
            *("".join(line) for line in cells),
        ]
    )


def blackjack(_env: Env, observation: tuple[int, int, int]) -> str:
    total, dealer, ace = map(int, observation)
    hand = "an ace counts as 11" if ace else "no ace counts as 11"
    shown = "an ace" if dealer == 1 else f"a card worth {dealer}"
    return f"Your cards add up to {total} ({hand}). The dealer shows {shown}."


def blackjack_ending(env: Env) -> str:
    """What the dealer held, which the player may know now."""
    total = sum(env.dealer)
    if 1 in env.dealer and total <= 11:
        total += 10
    return f"The dealer's cards add up to {total}."
