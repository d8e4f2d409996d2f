"""Whatever turns and sessions do: memory comes back, every turn ends once, with its own tokens."""

import asyncio
from collections import deque

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from inference.history_runner import make_engine, prompt_of, sampled_alone
from turnwise.inference import FinishReason, GenerationRequest
from turnwise.inference.local import LocalEngine
from turnwise.inference.worker import EngineTurn


class SteppedEngine(LocalEngine):
    """Steps when it is told to, in the caller's thread."""

    @property
    def waiting(self):
        return self._waiting

    def step(self, *, may_admit=True):
        self._advance(may_admit=may_admit)

    def finish(self):
        for _ in range(10_000):
            if not (self._waiting or self._active_turns()):
                return
            self.step()
        raise AssertionError("turns are left that never end")

    def held(self):
        """Tokens of the cache by who is known to hold them."""
        schedule = self._schedule
        known = {*schedule._sessions.values(), *schedule.running, *schedule.preempted}
        regions = [session.region for session in known if session.region is not None]
        assert len(set(regions)) == len(regions)
        assert schedule.prompts._entries.keys() <= known
        return sum(self._runner.kv_cache.capacity(region) for region in regions)


LOOP = asyncio.new_event_loop()


class RecordedTurn(EngineTurn):
    """Keeps what is delivered."""

    def __post_init__(self):
        super().__post_init__()
        self.outcomes = []

    def deliver(self, outcome):
        self.outcomes.append(outcome)


def make_turn(prompt, max_tokens, seed, session=None, timeout=None, branch_of=None):
    request = GenerationRequest(
        prompt, max_tokens, seed=seed, session=session, timeout=timeout, branch_of=branch_of
    )
    return RecordedTurn(request, 10_000, asyncio.Future(loop=LOOP))


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_branch_computes_only_what_is_new(monkeypatch, deterministic):
    engine = make_engine(monkeypatch, SteppedEngine, cache_tokens=4096, deterministic=deterministic)
    first = make_turn(prompt_of(100, 1), 20, seed=1, session="trunk")
    engine.waiting.append(first)
    engine.finish()
    common = [*first.request.prompt_ids, *first.ids][:110]
    turn = make_turn([*common, *prompt_of(30, 2)], 3, 2, "branch", branch_of=("trunk", 110))
    assert not engine._schedule.admit(deque([turn]))
    assert engine._schedule.running[0].num_cached == 109  # the last one comes with what is new
    engine.finish()
    assert turn.ids == sampled_alone(turn.request, 3)


class Traffic(RuleBasedStateMachine):
    """Turns of many conversations over a small cache, aborted, overdue, ended and updated."""

    def __init__(self):
        super().__init__()
        self.turns, self.sessions, self.number = [], {}, 0

    @initialize(
        deterministic=st.booleans(),
        cache_tokens=st.sampled_from([256, 384, 512]),
        max_batch_size=st.integers(1, 6),
    )
    def start(self, **options):
        with pytest.MonkeyPatch.context() as monkeypatch:
            self.engine = make_engine(monkeypatch, SteppedEngine, **options)
        self.largest = self.engine._runner.kv_cache.largest

    def submit(self, prompt, max_tokens, key, timeout=None, branch_of=None):
        self.number += 1
        if len(prompt) + max_tokens >= self.largest:
            return
        turn = make_turn(prompt, max_tokens, self.number, key, timeout, branch_of)
        self.engine.waiting.append(turn)
        self.turns.append(turn)
        if key is not None:
            self.sessions[key] = turn

    @rule(
        which=st.integers(0, 1),
        keys=st.lists(st.integers(0, 5), min_size=2, max_size=4, unique=True),
        max_tokens=st.integers(1, 30),
    )
    def begin_a_group_with_a_shared_prompt(self, which, keys, max_tokens):
        for key in keys:
            self.submit(prompt_of([100, 50][which], which), max_tokens, key)

    @rule(
        keys=st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
        num_common=st.integers(60, 100),
        length=st.integers(1, 40),
    )
    def begin_with_the_same_tokens_as_others(self, keys, num_common, length):
        for key in keys:
            own = prompt_of(length, self.number)
            self.submit([*prompt_of(100, 0)[:num_common], *own], 5, key)

    @rule(length=st.integers(1, 150), key=st.none() | st.integers(0, 5), late=st.booleans())
    def begin_with_a_prompt_of_its_own(self, length, key, late):
        self.submit(prompt_of(length, self.number), 5, key, 0.0 if late else None)

    @rule(key=st.integers(0, 5), length=st.integers(1, 60), max_tokens=st.integers(1, 30))
    def continue_a_conversation(self, key, length, max_tokens):
        if key in self.sessions:
            last = self.sessions[key]
            new = prompt_of(length, self.number)
            self.submit([*last.request.prompt_ids, *last.ids, *new], max_tokens, key)

    @rule(
        key=st.integers(0, 5),
        other=st.none() | st.integers(0, 5),
        share=st.floats(0, 1),
        length=st.integers(1, 40),
    )
    def branch_off_a_conversation(self, key, other, share, length):
        if key in self.sessions:
            last = self.sessions[key]
            ids = [*last.request.prompt_ids, *last.ids]
            kept = ids[: int(share * len(ids))]
            new = prompt_of(length, self.number)
            self.submit([*kept, *new], 5, other, branch_of=(key, len(kept)))

    @rule(index=st.integers(0, 100))
    def abort(self, index):
        if self.turns:
            self.turns[index % len(self.turns)].future.cancel()

    @rule(key=st.integers(0, 5))
    def end_session(self, key):
        self.engine.end_session(key)
        self.sessions.pop(key, None)

    @rule()
    def update_weights(self):
        for _ in range(1000):  # as the engine's thread does: no new turn begins before them
            if not self.engine._active_turns():
                break
            self.engine.step(may_admit=False)
        assert not self.engine._active_turns()
        self.engine._schedule.renew(keeps_cache=False)
        assert not self.engine._schedule.prompts._entries  # nothing of the old weights is found

    @rule(number=st.integers(1, 4))
    def step(self, number):
        for _ in range(number):
            self.engine.step()

    @rule()
    def fall_idle(self):
        self.engine.finish()

    @invariant()
    def every_region_has_a_holder(self):
        if hasattr(self, "engine"):
            assert self.engine._runner.kv_cache.num_allocated == self.engine.held()

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        self.engine.finish()
        for turn in self.turns:
            (result,) = turn.outcomes
            assert result.ids == turn.ids == sampled_alone(turn.request, len(turn.ids))
            if turn.finish_reason() is FinishReason.LENGTH:
                assert len(turn.ids) == turn.request.max_tokens
        for key in range(6):
            self.engine.end_session(key)
        self.engine.step()
        assert self.engine._runner.kv_cache.num_allocated == 0


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=12, stateful_step_count=40, deadline=None)
