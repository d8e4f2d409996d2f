"""The turns of an episode as a tree: which turn each one follows, and which branch it is on.

A conversation that only grows is one branch. Where an agent changed what it had sent, or retried,
or called in parallel, a turn follows an earlier one than the last, or none.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Span: TypeAlias = Sequence[int]
"""Two places in a stream: start and end of a turn, or where a branch starts and what it follows."""


@dataclass(frozen=True)
class TurnTree:
    """The turns of one agent, each by its number from 0."""

    follows: list[int | None]
    """The turn that each one follows; None at the beginning of a conversation."""
    branches: list[int]
    """The branch that each turn is on, from 0. The first turn that follows another one stays on its
    branch; every other one begins a branch."""


def turn_tree(turns: Sequence[Span], branches: Sequence[Span]) -> TurnTree:
    """Return the tree of turns with these tokens, in a stream with these branches.

    >>> turn_tree([(3, 5), (6, 8), (10, 12)], [(8, 5)])
    TurnTree(follows=[None, 0, 0], branches=[0, 0, 1])
    """
    starts = [start for start, _ in turns]
    follows: list[int | None] = []
    numbers: list[int] = []
    for start in starts:
        parent = _turn_before(start, starts, branches)
        if parent is not None and parent >= len(numbers):  # the turns are in another order
            parent = None
        if parent is None or parent in follows:
            numbers.append(max(numbers, default=-1) + 1)
        else:
            numbers.append(numbers[parent])
        follows.append(parent)
    return TurnTree(follows, numbers)


def _turn_before(token: int, starts: Sequence[int], branches: Sequence[Span]) -> int | None:
    """Return the last turn that stands before a token in its own conversation."""
    segment = token
    while True:
        number = bisect_right(branches, segment, key=lambda branch: branch[0]) - 1
        begin, after = branches[number] if number >= 0 else (0, 0)
        turn = bisect_right(starts, token - 1) - 1
        if turn >= 0 and starts[turn] >= begin:
            return turn
        if after == 0:
            return None
        token, segment = after, after - 1


def token_branches(
    num_tokens: int, turns: Sequence[Span], branches: Sequence[Span], tree: TurnTree
) -> list[int]:
    """Return the branch that each token came with; a token may be shared by later branches.

    >>> turns, branches = [(1, 2), (3, 4)], [(2, 1)]
    >>> token_branches(5, turns, branches, turn_tree(turns, branches))
    [0, 0, 1, 1, 1]
    """
    numbers: list[int] = []
    begins = [start for start, _ in branches]
    for number, (start, end) in enumerate(turns):
        # What stands between the turn before and where a branch begins came after that turn.
        segment = bisect_right(begins, start) - 1
        begin = begins[segment] if segment >= 0 else 0
        numbers += [numbers[-1] if numbers else 0] * (begin - len(numbers))
        numbers += [tree.branches[number]] * (end - len(numbers))
    return numbers + [numbers[-1] if numbers else 0] * (num_tokens - len(numbers))


def layout(tree: TurnTree) -> list[tuple[int, int]]:
    """Return the row and the column of each turn in a drawing without crossing lines.

    A branch is a row. Of the branches that leave another one, the last to leave is nearest to it.

    >>> layout(TurnTree([None, 0, 0, 1, 1], [0, 0, 1, 0, 2]))
    [(0, 0), (0, 1), (2, 1), (0, 2), (1, 2)]
    """
    columns: list[int] = []
    leaving: dict[int | None, list[tuple[int, int]]] = {}
    seen: set[int] = set()
    for number, parent in enumerate(tree.follows):
        columns.append(0 if parent is None else columns[parent] + 1)
        branch = tree.branches[number]
        if branch not in seen:
            seen.add(branch)
            from_branch = None if parent is None else tree.branches[parent]
            leaving.setdefault(from_branch, []).append((columns[number], branch))
    rows: dict[int, int] = {}
    waiting = [branch for _, branch in reversed(leaving.get(None, []))]
    while waiting:
        branch = waiting.pop()
        rows[branch] = len(rows)
        nearest_last = sorted(leaving.get(branch, []), key=lambda one: (one[0], -one[1]))
        waiting += [inner for _, inner in nearest_last]
    return [(rows[branch], column) for branch, column in zip(tree.branches, columns, strict=True)]


def turn_messages(
    messages: Sequence[Mapping[str, Any]], known: Sequence[int | None]
) -> list[int | None]:
    """Return the place of each turn's own message; None if the messages do not have it.

    `known` are the recorded places. Without any, the last messages of the model are those of its
    turns: a prompt may have others, which were never sampled.
    """
    if any(index is not None and index < len(messages) for index in known):
        return [index if index is not None and index < len(messages) else None for index in known]
    spoke = [index for index, one in enumerate(messages) if one.get("role") == "assistant"]
    last = spoke[max(len(spoke) - len(known), 0) :]
    return [*[None] * (len(known) - len(last)), *last]
