"""`Pacer`: when the groups of an asynchronous run start, and which of them an update trains on.

A group that starts after update v may be trained on by the updates v to v + `max_staleness`. It
starts only if all groups that have started can be trained on in time, whatever the order in which
they finish. So no group is ever too old: none is dropped, and slow tasks are trained on as often as
fast ones.

The rules, with B groups per update and v updates done:

- A group starts while fewer groups have started than the updates that may train on it take: B x
  (max_staleness + 1) before the next update, B x max_staleness while it is computed.
- Not all of them start: groups that wait for the learner only become older. A window limits them,
  which grows whenever the learner had to wait for a batch and shrinks when it had not.
- The next update takes the B oldest finished groups, as soon as the others can still be trained on
  in time: of those that the updates up to d must take, at most B x (d - v) may be left. Until then
  it waits for older groups to finish.

With a staleness of 0 these are synchronous steps. Taking the oldest groups first is optimal here:
if any choice of finished groups leaves enough time for the others, this one does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self


class Draw(NamedTuple):
    """A group to play: the block of the task order that it belongs to, and its place in it.

    Synchronous step n plays block n. Block and place give the group's task and seeds.
    """

    block: int
    place: int


@dataclass
class _Started:
    """A group that has started and is not trained on."""

    draw: Draw
    version: int
    """Updates that were done when it started."""
    is_finished: bool = False


class Pacer:
    """Decides which groups start, and which ones an update trains on. It knows no clock.

    `num_updates` is the number of updates after which the run ends: no group starts that no update
    would train on. Only one thread may use a pacer.
    """

    def __init__(
        self, batch_size: int, max_staleness: int, *, version: int = 0, num_updates: int
    ) -> None:
        self.batch_size = batch_size
        self.max_staleness = max_staleness
        self.version = version
        """Updates that are done."""
        self.num_updates = num_updates
        self._batch: list[Draw] = []
        """The groups that are being trained on."""
        self._next = Draw(version, 0)
        self._again: deque[Draw] = deque()
        """Groups that had started when the run was interrupted; they start before new ones."""
        self._started: dict[Draw, _Started] = {}
        """In the order in which they started."""
        self._window = 2 * batch_size
        self._has_waited = False
        """Whether the learner has to wait for its next batch."""

    @property
    def num_started(self) -> int:
        """Groups that have started and are not trained on."""
        return len(self._started)

    def start(self) -> Draw | None:
        """Start the next group; return None if none may start now."""
        # The update that is being computed has its batch already.
        updates_left = min(self.max_staleness + 1, self.num_updates - self.version)
        limit = self.batch_size * (updates_left - bool(self._batch))
        if len(self._started) >= min(limit, self._window):
            return None
        if self._again:
            draw = self._again.popleft()
        else:
            draw, (block, place) = self._next, self._next
            is_last = place + 1 >= self.batch_size
            self._next = Draw(block + 1, 0) if is_last else Draw(block, place + 1)
        self._started[draw] = _Started(draw, self.version)
        return draw

    def finish(self, draw: Draw) -> None:
        """Record that all episodes of a group have ended."""
        self._started[draw].is_finished = True

    def next_batch(self) -> list[Draw] | None:
        """Return the groups of the next update, the oldest first; None if it has to wait.

        They are removed: each group is trained on once.
        """
        assert not self._batch, "the update on the last batch is not done"
        finished = [group for group in self._started.values() if group.is_finished]
        batch = finished[: self.batch_size]
        if len(batch) < self.batch_size or not self._can_wait_without(batch):
            self._has_waited = True
            return None
        if self._has_waited:
            self._window += self.batch_size
        else:
            self._window -= max(self.batch_size // 16, 1)
        largest = self.batch_size * (self.max_staleness + 1)
        self._window = min(max(self._window, self.batch_size), largest)
        self._has_waited = False
        for group in batch:
            del self._started[group.draw]
        self._batch = [group.draw for group in batch]
        return list(self._batch)

    def _can_wait_without(self, batch: Iterable[_Started]) -> bool:
        """Return whether later updates can train on all other groups in time."""
        chosen = {group.draw for group in batch}
        left = [group for group in self._started.values() if group.draw not in chosen]
        due = Counter(group.version + self.max_staleness for group in left)
        num_due = 0
        for update in sorted(due):
            num_due += due[update]
            if num_due > self.batch_size * (update - self.version):
                return False
        return True

    def updated(self) -> None:
        """Record that the update on the last batch is done."""
        self.version += 1
        self._batch = []

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: what was not trained on is played again."""
        waiting = [*self._batch, *self._started, *self._again]
        return {"next": list(self._next), "again": [list(draw) for draw in waiting]}

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore the groups that are to be played; `version` is the caller's."""
        self._next = Draw(*map(int, state["next"]))
        self._again = deque(Draw(*map(int, draw)) for draw in state["again"])
        self._started.clear()
        self._batch = []
        return self
