"""One episode of an agent that owns its loop: from its task to tokens and a reward."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping
from typing import Any

from turnwise.agents.expert import Expert, ExpertSession
from turnwise.agents.gateway import Gateway
from turnwise.agents.runner import CommandResult, check_agent, run_agent
from turnwise.agents.session import AgentSession
from turnwise.chat.tree import SampledTurn, ThoughtPolicy
from turnwise.deadlines import episode_task, is_interrupt
from turnwise.episode.collector import EpisodeSource
from turnwise.episode.options import EpisodeSetup
from turnwise.episode.types import AgentRecord, EpisodeResult, EpisodeTask
from turnwise.episode.watchdog import EpisodeTimer
from turnwise.errors import (
    ConfigError,
    DeadlineExceeded,
    RewardError,
    TurnwiseError,
    describe_error,
)
from turnwise.reward.function import step_rewards
from turnwise.reward.result import count_turns, read_reward
from turnwise.types import EpisodeStatus
from turnwise.user_code import user_traceback


class AgentEpisodes(EpisodeSource):
    """The episodes of one agent; they share a gateway, which starts with the first of them."""

    def __init__(
        self, agent: Any, *, thoughts: ThoughtPolicy = "as_sent", expert: Expert | None = None
    ) -> None:
        self.agent = check_agent(agent)
        self.expert = expert
        self.thoughts = thoughts
        self._gateway: Gateway | None = None
        self._starting = threading.Lock()

    def episode(
        self, setup: EpisodeSetup, task: EpisodeTask, attempt: int = 1, *, by_expert: bool = False
    ) -> AgentEpisode:
        """Make the episode of a task; `by_expert`, the expert replies in the model's place."""
        if by_expert and self.expert is None:
            raise ConfigError(
                "there is no expert for the agent. Pass Trainer(agent=..., expert=expert), or set "
                "expert: file.py:function; it takes (messages, tools) and returns the reply."
            )
        make = functools.partial(ExpertSession, expert=self.expert) if by_expert else AgentSession
        session = make(setup, seeds=(task.seed, task.group, task.member), thoughts=self.thoughts)
        return AgentEpisode(setup, self, session, task, attempt)

    @property
    def gateway(self) -> Gateway:
        """Serves the episodes; the first call starts it."""
        with self._starting:
            if self._gateway is None:
                self._gateway = Gateway().start()
            return self._gateway

    def close(self) -> None:
        """Stop the gateway; may be called twice."""
        with self._starting:
            if self._gateway is not None:
                self._gateway.stop()
            self._gateway = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process has a gateway of its own."""
        make = functools.partial(AgentEpisodes, thoughts=self.thoughts, expert=self.expert)
        return make, (self.agent,)


class AgentEpisode:
    """Lets an agent do one task, and keeps what it sampled. `run` it once.

    The reward is what `reward_fn` says of the trajectory, whose `result` is what the agent
    returned; without one it is what the agent returned itself. `{"success": True}` in it is the
    episode's success, and no part of the reward if there is another.
    """

    def __init__(
        self,
        setup: EpisodeSetup,
        source: AgentEpisodes,
        session: AgentSession,
        task: EpisodeTask,
        attempt: int = 1,
    ) -> None:
        self._setup = setup
        self._source = source
        self._session = session
        self._task: Mapping[str, Any] = {"seed": task.seed} if task.task is None else task.task
        self._timer = EpisodeTimer(setup.waits, setup.limits.max_seconds)
        self._engine_seconds = 0.0
        self.result = EpisodeResult(
            task.seed, task.group, task.member, attempt=attempt, started=time.time()
        )

    async def run(self) -> EpisodeResult:
        """Play to the end; afterwards nothing is open or held. A cancellation propagates."""
        async with episode_task() as user_calls:
            gateway = self._source.gateway
            llm = gateway.open(self._session)
            returned: Any = None
            status, error = EpisodeStatus.DONE, None
            try:
                with self._timer.component("agent"):
                    timeout = self._timer.within(None)
                    returned = await run_agent(self._source.agent, self._task, llm, timeout)
            except BaseException as raised:
                if is_interrupt(raised):
                    raise
                status, error = self._failure(raised)
            finally:
                await gateway.close(llm)
            record = self._record(returned)
            self.result.agents = [record]
            if self._session.failure is not None:
                status, error = EpisodeStatus.ENGINE_ERROR, describe_error(self._session.failure)
            elif self._session.exhausted is not None and not status.is_error:
                status = self._session.exhausted
            self._set_status(record, status, error)
            if not status.is_error:
                await self._score(record, returned)
        self.result.abandoned_calls = user_calls.num_abandoned
        seconds = {**self._timer.component_seconds, "engine": self._engine_seconds}
        self.result.seconds = {**seconds, "total": self._timer.seconds}
        return self.result

    def _failure(self, error: BaseException) -> tuple[EpisodeStatus, str]:
        """The status of an agent that raised or did not return in time."""
        exhausted = self._session.exhausted
        text = str(error) if isinstance(error, TurnwiseError) else describe_error(error)
        is_late = isinstance(error, DeadlineExceeded) and self._timer.is_over
        if is_late:  # the same words in every episode, whatever was left of its time
            limit = self._setup.limits.max_seconds
            text = (
                f"the agent took longer than {limit:g} s. Make it faster, or raise "
                "limits.max_seconds."
            )
        if self._has_reward_function and (is_late or exhausted is not None):
            return exhausted or EpisodeStatus.TRUNCATED_BY_TIME, text
        self.result.traceback = user_traceback(error)
        return EpisodeStatus.AGENT_ERROR, text

    @property
    def _has_reward_function(self) -> bool:
        return self._setup.reward.function is not step_rewards

    def _set_status(self, record: AgentRecord, status: EpisodeStatus, error: str | None) -> None:
        self.result.status, self.result.error = status, error
        record.trajectory.status, record.trajectory.error = status, error

    async def _score(self, record: AgentRecord, returned: Any) -> None:
        value = returned.reward if isinstance(returned, CommandResult) else returned
        if isinstance(value, Mapping) and isinstance(value.get("success"), bool):
            if record.turns:
                record.turns[-1].info["success"] = value["success"]
            others = {name: part for name, part in value.items() if name != "success"}
            value = others or float(value["success"])
        try:
            if self._has_reward_function:
                with self._timer.component("reward"):
                    record.reward = await self._setup.score(record.trajectory, None)
            elif value is None:
                ended = ""
                if isinstance(returned, CommandResult):
                    output = returned.output.strip()[-500:] or "nothing"
                    code = returned.exit_code
                    ended = f". The command ended with exit code {code} and wrote: {output}"
                raise RewardError(
                    "the agent left no reward, expected a number or a dict of numbers. Return one, "
                    "write it as JSON into $TURNWISE_REWARD_FILE if it is a command, or pass "
                    f"reward_fn{ended}"
                )
            else:
                record.reward = read_reward(value, count_turns(record.trajectory))
        except RewardError as error:
            text = str(error)
            if value is not None and not self._has_reward_function:
                text = (
                    f"the agent returned {value!r:.80}, which is no reward: {text} Or pass "
                    "reward_fn, which finds it in trajectory.result."
                )
            self._set_status(record, EpisodeStatus.REWARD_ERROR, text)

    def _record(self, returned: Any) -> AgentRecord:
        """The tree as a stream with branches, and its turns in the same order."""
        session = self._session
        record = AgentRecord("agent", session.tree.stream())
        trajectory = record.trajectory
        trajectory.seed, trajectory.task, trajectory.result = self.result.seed, self._task, returned
        turns = session.tree.in_order()
        followed = {turn.parent: turn for turn in reversed(turns) if turn.parent is not None}
        for turn, tokens in zip(turns, record.stream.turns, strict=True):
            played = session.records[turn]
            record.add_turn(played, tokens, turn.messages)
            played.state = _text(turn)
            if (following := followed.get(turn)) is not None:
                played.observation = _text(following)
                # Results that the agent sent back belong to the calls with these ids.
                sent = {m.get("tool_call_id"): m.get("content") for m in following.messages}
                written = turn.reply.get("tool_calls") or ()
                for call, sent_call in zip(played.calls, written, strict=False):
                    if sent_call["id"] in sent:
                        call.success, call.result = True, sent[sent_call["id"]]
            self._engine_seconds += played.seconds["engine"]
        if record.turns:
            record.turns[-1].done = True
        record.fill_trajectory()
        trajectory.prompts = [_text(turns[0])] if turns else []
        return record


def _text(turn: SampledTurn) -> str:
    """The messages that a turn answers, as text."""
    return "\n\n".join(str(message.get("content") or "") for message in turn.messages)
