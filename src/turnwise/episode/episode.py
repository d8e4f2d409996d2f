"""One episode: an agent or several, one environment, and every way in which it can end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from turnwise.chat import Message
from turnwise.deadlines import contained, is_interrupt, num_abandoned
from turnwise.env import BaseEnvironment
from turnwise.env.base import NO_TASK
from turnwise.env.catalog import EnvironmentFactory
from turnwise.episode.actions import Actions, Outcome
from turnwise.episode.agent import Agent, too_slow
from turnwise.episode.limits import Clock
from turnwise.episode.parts import Parts
from turnwise.episode.setup import EpisodeSetup
from turnwise.episode.types import AgentRecord, EpisodeResult, TurnRecord
from turnwise.episode.world import World
from turnwise.errors import (
    DeadlineExceeded,
    EnvironmentFault,
    TurnwiseError,
    describe_error,
    error_message,
)
from turnwise.inference import FinishReason
from turnwise.types import EpisodeStatus
from turnwise.user_code import user_traceback

_LOG = logging.getLogger("turnwise")
_ALONE = "agent"


class EpisodeWatcher(Protocol):
    """Sees an episode while it is played; called on the loop that plays it."""

    def opened(self, agent: AgentRecord) -> None:
        """An agent was told the first thing; `agent.messages` has it."""

    def turned(self, agent: AgentRecord, turn: TurnRecord) -> None:
        """An agent has spoken, and the world has answered."""


class Episode:
    """One episode on one environment of its own. `run` it once.

    `source` makes the environment, which is closed at the end; one that was made elsewhere is
    left open. None: there is no environment, and the first turn without tool calls is the answer.
    """

    def __init__(
        self,
        setup: EpisodeSetup,
        source: EnvironmentFactory | BaseEnvironment | None,
        *,
        seed: int = 0,
        group: int = 0,
        member: int = 0,
        attempt: int = 1,
        prompt: str = "",
        task: Mapping[str, Any] | None = None,
        watcher: EpisodeWatcher | None = None,
    ) -> None:
        self.told = ""
        """What the agent to move was told last."""
        self._watcher = watcher
        self._setup = setup
        self._prompt = prompt
        self._task = task
        self.result = EpisodeResult(seed, group, member, attempt=attempt, started=time.time())
        self._status: EpisodeStatus | None = None
        self._agents: dict[str, Agent] = {}
        self._players: Sequence[str] = ()
        """In the environment's order."""
        self._num_turns = 0
        self._clock = Clock(setup.limits.max_seconds)
        self._parts = Parts(setup.waits)
        self._world: World | None = None
        if source is not None:
            self._world = World(source, setup.style, setup.limits.max_observation, task)
        self._actions = Actions(
            setup.abilities,
            setup.limits,
            self._parts,
            self._clock,
            self._world,
            setup.tools,
            setup.parser,
        )

    async def run(self) -> EpisodeResult:
        """Play to the end, whatever it is; afterwards nothing is open or held.

        The one boundary at which failures become data. What is nobody's failure, such as a chat
        template that cannot write these messages, flies; so does a cancellation.
        """
        num_before = num_abandoned()
        try:
            try:
                await self._play()
            except BaseException as error:
                self._take_failure(error)
            self._write_down()
            if self._status is not None and not self._status.is_error:
                try:
                    await self._score()
                except BaseException as error:
                    self._take_failure(error)
                    self._write_down()
        finally:
            await self._clean_up()
        self.result.abandoned_calls = num_abandoned() - num_before
        return self.result

    async def _play(self) -> None:
        self.told, prefix = await self._begin()
        messages: Sequence[Message] = ()
        speaker: Agent | None = None
        while self._status is None:
            agent = await self._agent_to_move(self.told, prefix)
            if agent is speaker:
                agent.hear(messages)
            elif len(agent.record.turns) > 0:
                agent.hear([{"role": "user", "content": self.told}])
            speaker = agent
            turn = await self._next_turn(agent)
            if turn is None:
                return
            outcome = await self._actions.act(turn.text, in_thought=turn.in_thought)
            self._take_outcome(agent, turn, outcome)
            self.told, messages = outcome.observation, outcome.messages
            if self._watcher is not None:
                self._watcher.turned(agent.record, turn)

    async def _begin(self) -> tuple[str, str]:
        """The first thing to read, and the system prompt."""
        if self._world is None:
            self._actions.begin()
            return "", ""
        with self._parts.part("environment"):
            timeout = self._clock.within(self._setup.limits.reset_timeout)
            begun = await self._world.begin(self.result.seed, timeout)
        with self._parts.part("tools"):
            self._actions.begin()
        return begun

    async def _agent_to_move(self, told: str, prefix: str) -> Agent:
        """Whose turn it is; one that has not spoken yet hears its opening first."""
        name = _ALONE
        if self._world is not None:
            with self._parts.part("environment"):
                name = self._player(self._world.environment)
        agent = self._agents.get(name)
        if agent is not None:
            return agent
        if self._agents and self._world is not None:
            with self._parts.part("environment"):
                timeout = self._clock.within(self._setup.limits.step_timeout)
                prefix = await self._world.prefix(timeout)
        # The group too: two groups may start from the same seed, and must not say the same.
        seeds = (self.result.seed, self.result.group, self.result.member)
        agent = self._agents[name] = Agent(self._setup, name, seeds)
        agent.record.trajectory.prompts = [prefix, told]
        agent.record.trajectory.seed = self.result.seed
        actions = self._actions
        system = "\n\n".join(filter(None, [self._setup.system_prompt, prefix]))
        first = "\n\n".join(filter(None, [self._prompt, told]))
        # Who joins later was not there for what was said before.
        history = self._world.history if self._world is not None and len(self._agents) == 1 else []
        messages = self._setup.abilities.open_with(
            system,
            history[0]["content"] if history else first,
            actions.definitions,
            actions.parser,
        )
        if history:
            messages += [*history[1:], {"role": "user", "content": first}]
        agent.open(messages, actions.definitions)
        if self._watcher is not None:
            self._watcher.opened(agent.record)
        return agent

    def _player(self, environment: BaseEnvironment | None) -> str:
        players = getattr(environment, "players", None)
        if players is None or not isinstance(players, Sequence) or isinstance(players, str):
            return _ALONE
        self._players = list(players)
        current = getattr(environment, "current_player", None)
        if not isinstance(current, str) or current not in players:
            raise EnvironmentFault(
                f"{type(environment).__name__}.current_player is {current!r}, expected one of its "
                f"players: {', '.join(map(str, players))}"
            )
        return current

    async def _next_turn(self, agent: Agent) -> TurnRecord | None:
        """Let the agent speak; None where there is no room or time for it, and the status says."""
        self._parts.begin_turn()
        started = self._clock.seconds
        if agent.room < 1:
            length = len(agent.record.stream)
            self._end(EpisodeStatus.TRUNCATED_BY_TOKENS, f"no room after {length} tokens")
            return None
        if self._clock.is_over:
            self._end(EpisodeStatus.TRUNCATED_BY_TIME)
            return None
        keep = () if self._actions.parser is None else self._actions.parser.special_tokens
        with self._parts.part("engine"):
            timeout = self._clock.within(self._setup.limits.generation_timeout)
            turn = await agent.speak(timeout, keep)
            self._num_turns += 1
            turn.started = started
            if turn.finish_reason is FinishReason.DEADLINE:
                raise too_slow(timeout)
        return turn

    def _take_outcome(self, agent: Agent, turn: TurnRecord, outcome: Outcome) -> None:
        """Write down what came of a turn, and see whether the episode goes on."""
        turn.state, turn.observation = outcome.state, outcome.observation
        turn.calls, turn.tool_results = outcome.calls, outcome.results
        turn.malformed, turn.other_format = outcome.malformed, outcome.other_format
        turn.info, turn.done = outcome.info, outcome.done
        turn.reward = outcome.reward + agent.unplaced_reward
        turn.seconds = self._parts.turn
        agent.unplaced_reward = 0.0
        if len(self._agents) > 1 or "rewards" in outcome.info:
            with self._parts.part("environment"):  # what is no number is its mistake
                self._share_rewards(agent, turn, outcome)
        if outcome.status is not None:
            self._end(outcome.status)
        elif turn.finish_reason is FinishReason.CONTEXT or agent.room < 1:
            self._end(EpisodeStatus.TRUNCATED_BY_TOKENS)
        elif (limit := self._setup.limits.max_turns) is not None and self._num_turns >= limit:
            self._end(EpisodeStatus.TRUNCATED_BY_TURNS)

    def _share_rewards(self, actor: Agent, turn: TurnRecord, outcome: Outcome) -> None:
        """`info["rewards"]` is what each player earned; others get theirs on their last turn."""
        rewards = outcome.info.get("rewards")
        for name, other in self._agents.items():
            if outcome.done and other.record.turns:
                other.record.turns[-1].done = True
            if not isinstance(rewards, Mapping) or name not in rewards:
                continue
            earned = float(rewards[name])
            if other is actor:
                turn.reward += earned - outcome.reward
            elif other.record.turns:
                other.record.turns[-1].reward += earned
            else:
                other.unplaced_reward += earned

    def _end(self, status: EpisodeStatus, why: str | None = None) -> None:
        self._status, self.result.error = status, why

    def _take_failure(self, error: BaseException) -> None:
        """Give the failure its status; what nobody in the episode raised propagates."""
        if is_interrupt(error):
            raise error
        blame = self._parts.blame
        if blame is None:
            raise contained(error, "an episode")
        if isinstance(error, DeadlineExceeded) and self._clock.is_over and self._status is None:
            what = str(error).partition(" took longer")[0]
            limit = self._setup.limits.max_seconds
            self._end(
                EpisodeStatus.TRUNCATED_BY_TIME,
                f"the episode took longer than {limit:g} s, and {what} was not done. "
                "Raise limits.max_seconds.",
            )
            return
        self.result.traceback = lines = user_traceback(error)
        is_ours = isinstance(error, TurnwiseError)
        text = error_message(error) if is_ours else describe_error(error)
        if self._task is None and "NoneType" in text and ".task" in (lines or ""):
            text = f"{text}. {NO_TASK}"
        self._end(blame, text)

    def _write_down(self) -> None:
        """The result, with the turns once more as reward functions see them."""
        assert self._status is not None
        result = self.result
        result.status = self._status
        result.agents = [agent.record for agent in self._in_order()]
        for record in result.agents:
            trajectory, turns = record.trajectory, record.turns
            if turns and not turns[-1].seconds:  # the world has not answered
                turns[-1].seconds = self._parts.turn
                turns[-1].info = {"unanswered": True}
            trajectory.states = [turn.state for turn in turns]
            trajectory.actions = [turn.text for turn in turns]
            trajectory.observations = [turn.observation for turn in turns]
            trajectory.rewards = [turn.reward for turn in turns]
            trajectory.dones = [turn.done for turn in turns]
            trajectory.infos = [turn.info for turn in turns]
            trajectory.status, trajectory.error = self._status, result.error
            trajectory.seed, trajectory.task = result.seed, self._task

    def _in_order(self) -> list[Agent]:
        """The agents that spoke, in the order of the environment's players; at least one."""
        spoke = sorted(self._agents.items(), key=lambda item: _place(item[0], self._players))
        return [agent for _, agent in spoke] or [Agent(self._setup)]

    async def _score(self) -> None:
        environment = None if self._world is None else self._world.environment
        with self._parts.part("reward"):
            for record in self.result.agents:
                record.reward = await self._setup.score(record.trajectory, environment)

    async def _clean_up(self) -> None:
        timeout = self._setup.limits.close_timeout
        try:
            for agent in self._agents.values():
                agent.close()
        except Exception as error:
            _LOG.warning("ending a conversation with the engine failed: %s", describe_error(error))
        try:
            await self._actions.close(timeout)
        finally:
            if self._world is not None:
                await self._world.close(timeout)
        if self._setup.may_compare():
            for agent in self._agents.values():
                agent.tell_difference()
        self.result.seconds = {**self._parts.seconds, "total": self._clock.seconds}


def _place(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)
