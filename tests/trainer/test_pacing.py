"""The pacer under a virtual clock: staleness is bounded, nothing is lost, twice, or deadlocked."""

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings, strategies as st

from turnwise.trainer.async_rollout import Draw, Pacer


@dataclass
class Machine:
    """Workers that play groups and a learner that trains on them, in virtual time.

    A worker plays one group at a time. `fails` says whether a worker is lost with its group, which
    is then played again from its start.
    """

    pacer: Pacer
    num_workers: int
    duration: object
    update_seconds: object
    fails: object = lambda: False
    now: float = 0.0
    events: list = field(default_factory=list)
    started: dict = field(default_factory=dict)
    trained: list = field(default_factory=list)
    staleness: list = field(default_factory=list)
    num_failures: int = 0
    is_updating: bool = False

    def run(self, until=None):
        """Runs to the end, or until so many updates are done."""
        until = self.pacer.num_updates if until is None else until
        while self.pacer.version < until:
            self._start_what_may()
            assert len(self.pacer._started) <= self.pacer.batch_size * (
                self.pacer.max_staleness + 1
            )
            assert self.events, "nothing is under way, and the run is not over: a deadlock"
            self.now, _, event, *about = heapq.heappop(self.events)
            event(*about)
        return self

    def _start_what_may(self):
        while not self.is_updating and (batch := self.pacer.next_batch()) is not None:
            self.is_updating = True
            self.trained.append(batch)
            self.staleness += [self.pacer.version - self.started[draw] for draw in batch]
            self._after(self.update_seconds(), self._end_update)
        while self._num_playing < self.num_workers and (draw := self.pacer.start()) is not None:
            self.started[draw] = self.pacer.version
            self._after(self.duration(draw), self._end_group, draw)

    @property
    def _num_playing(self):
        return sum(event[2] == self._end_group for event in self.events)

    def _after(self, seconds, event, *about):
        heapq.heappush(self.events, (self.now + seconds, next(_COUNT), event, *about))

    def _end_group(self, draw):
        if self.fails():
            self.num_failures += 1
            self._after(self.duration(draw), self._end_group, draw)
        else:
            self.pacer.finish(draw)

    def _end_update(self):
        self.is_updating = False
        self.pacer.updated()


_COUNT = iter(range(10**9))


def drawn(num_blocks, batch_size):
    return [Draw(block, place) for block in range(num_blocks) for place in range(batch_size)]


@st.composite
def machines(draw):
    rng = random.Random(draw(st.integers(0, 2**32)))
    batch_size, num_updates = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    pacer = Pacer(batch_size, draw(st.integers(0, 5)), num_updates=num_updates)
    spread, update = draw(st.sampled_from([0.0, 0.5, 2.0])), draw(st.sampled_from([0.0, 0.1, 5.0]))
    failures = draw(st.sampled_from([0.0, 0.3]))
    return Machine(
        pacer,
        num_workers=draw(st.integers(1, 12)),
        duration=lambda _: rng.lognormvariate(0.0, spread),
        update_seconds=lambda: update * rng.random(),
        fails=lambda: rng.random() < failures,
    )


@settings(max_examples=300)
@given(machines())
def test_every_group_is_trained_on_once_and_in_time(machine):
    machine.run()
    pacer = machine.pacer
    trained = [draw for batch in machine.trained for draw in batch]
    assert max(machine.staleness) <= pacer.max_staleness
    assert Counter(trained) == Counter(drawn(pacer.num_updates, pacer.batch_size))
    assert all(len(batch) == pacer.batch_size for batch in machine.trained)
    assert not pacer._started
    assert not machine.events, "groups are still played after the last update"


@settings(max_examples=100)
@given(machines(), st.lists(st.integers(0, 8), max_size=4), st.integers(0, 5))
def test_an_interrupted_run_plays_again_what_was_not_trained_on(machine, stops, other_staleness):
    pacer, trained = machine.pacer, []
    for stop in sorted(stops):
        if stop <= pacer.version or stop >= pacer.num_updates:
            continue
        machine.run(until=stop)
        trained += machine.trained
        # Another process: what was under way or had finished is lost, with another staleness.
        resumed = Pacer(
            pacer.batch_size, other_staleness, version=stop, num_updates=pacer.num_updates
        )
        resumed.load_state_dict(pacer.state_dict())
        pacer = resumed
        machine = Machine(
            resumed, machine.num_workers, machine.duration, machine.update_seconds, machine.fails
        )
    machine.run()
    trained += machine.trained
    assert max(machine.staleness) <= pacer.max_staleness
    found = Counter(draw for batch in trained for draw in batch)
    assert found == Counter(drawn(pacer.num_updates, pacer.batch_size))
