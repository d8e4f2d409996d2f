"""One episode: an agent or several, one environment, and every way in which it can end."""

import dataclasses
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

from turnwise.chat import Message
from turnwise.deadlines import contained, episode_task, is_interrupt
from turnwise.env import BaseEnvironment
from turnwise.env.base import NO_TASK
from turnwise.env.catalog import EnvironmentFactory
from turnwise.episode.actions import Actions
from turnwise.episode.agent import Agent
from turnwise.episode.environment_session import EnvironmentSession
from turnwise.episode.options import EpisodeSetup
from turnwise.episode.sampling import too_slow
from turnwise.episode.types import AgentRecord, EpisodeResult, EpisodeTask, TurnRecord
from turnwise.episode.watchdog import EpisodeTimer
from turnwise.errors import (
    ConfigError,
    DeadlineExceeded,
    EnvironmentFault,
    TurnwiseError,
    describe_error,
)
from turnwise.inference import FinishReason
from turnwise.tools import answer_of
from turnwise.types import EpisodeStatus
from turnwise.user_code import user_traceback

_LOG = logging.getLogger("turnwise")


class EpisodeWatcher(Protocol):
    """Observes an episode while it is played; called on the event loop that plays it."""

    def on_start(self, agent: AgentRecord) -> None:
        """Called when an agent has its initial prompt, which is in `agent.messages`."""

    def on_turn(self, agent: AgentRecord, turn: TurnRecord) -> None:
        """Called when a turn was sampled and carried out."""


class Episode:
    """One episode on one environment of its own. `run` it once.

    `source` is a factory, whose environment is closed at the end, or an environment, which is left
    open. Without an environment the first turn without tool calls is the answer.
    """

    def __init__(
        self,
        setup: EpisodeSetup,
        source: EnvironmentFactory | BaseEnvironment | None,
        task: EpisodeTask | None = None,
        *,
        attempt: int = 1,
        watcher: EpisodeWatcher | None = None,
    ) -> None:
        self.observation = ""
        """The last observation, for the agent to move."""
        self.agent_to_move: Agent | None = None
        self._watcher = watcher
        self._setup = setup
        self._task = task = task or EpisodeTask(seed=0)
        self.result = EpisodeResult(
            task.seed, task.group, task.member, attempt=attempt, started=time.time()
        )
        self._status: EpisodeStatus | None = None
        self._agents: dict[str, Agent] = {}
        self._players: Sequence[str] = ()
        """In the environment's order."""
        self._num_turns = 0
        self._max_steps: int | None = None
        """The environment's own limit."""
        self._timer = EpisodeTimer(setup.waits, setup.limits.max_seconds)
        self._session = EnvironmentSession(
            source, setup.limits, self._timer, setup.call_mode, task.task
        )
        self._actions = Actions(self._session, setup.messages, setup.tools, setup.parser)

    @property
    def environment(self) -> BaseEnvironment | None:
        """The environment while the episode is played."""
        return self._session.environment

    async def run(self) -> EpisodeResult:
        """Plays to the end, whatever it is, and closes everything.

        This is the one boundary where failures become data. An error outside of all components,
        such as a chat template that cannot render these messages, propagates; so does a
        cancellation.
        """
        async with episode_task() as task:
            try:
                await self._or_record_failure(self._play())
                self._fill_result()
                if not self.result.status.is_error:
                    await self._or_record_failure(self._score())
                    self._fill_result()
            finally:
                await self._clean_up()
        self.result.abandoned_calls = task.num_abandoned
        return self.result

    async def _play(self) -> None:
        prefix = await self._begin()
        messages: Sequence[Message] = ()
        previous: Agent | None = None
        while self._status is None:
            agent = self.agent_to_move = await self._next_agent(prefix)
            if agent is not previous:
                messages = [{"role": "user", "content": self.observation}]
            previous = agent
            if agent.record.turns:
                await self._continue(agent, messages)
            turn = await self._next_turn(agent)
            if turn is None:
                return
            number = len(agent.record.turns) - 1
            # A copy: a turn that fails stays as it was sampled.
            turn = dataclasses.replace(turn, calls=[], tool_results=[], info={})
            try:
                messages, status = await self._actions.act(turn)
            finally:
                failure = agent.place_sub_agents()
            if failure is not None:
                with self._timer.component("engine"):
                    raise failure
            agent.record.turns[number] = turn
            self._record_outcome(agent, turn, status)
            self.observation = turn.observation
            if self._watcher is not None:
                self._watcher.on_turn(agent.record, turn)

    async def _begin(self) -> str:
        """Resets the environment and adds its tools; returns its system prompt."""
        self.observation, prefix = await self._session.start(self.result.seed)
        with self._timer.component("environment"):  # it may be a property
            self._max_steps = getattr(self._session.environment, "max_steps", None)
        with self._timer.component("tools"):
            self._actions.begin()
        if self._actions.context is not None:
            self._actions.context.asked = self._answer_tool
        return prefix

    async def _answer_tool(self, messages: Sequence[Message], max_tokens: int | None) -> str:
        assert self.agent_to_move is not None
        timeout = self._timer.within(self._setup.limits.generation_timeout)
        return await self.agent_to_move.ask(messages, max_tokens, timeout)

    async def _next_agent(self, prefix: str) -> Agent:
        """Returns the agent whose turn it is; a new one starts with its initial prompt."""
        with self._timer.component("environment"):
            name = self._player(self._session.environment)
        if name in self._agents:
            return self._agents[name]
        history: Sequence[Message] = self._session.history  # it belongs to the first agent
        if self._agents:
            history = ()
            prefix = await self._session.describe("get_prompt_prefix")
        # The group too: two groups may have the same seed, and must be sampled differently.
        seeds = (self.result.seed, self.result.group, self.result.member)
        setup = self._setup.for_player(name)
        agent = self._agents[name] = Agent(setup, name, seeds)
        agent.record.trajectory.prompts = [prefix, self.observation]
        agent.record.trajectory.seed = self.result.seed
        system = "\n\n".join(filter(None, [setup.system_prompt, prefix]))
        first = "\n\n".join(filter(None, [self._task.prompt, self.observation]))
        if self._actions.parser is not None and setup.chat.template != self._setup.chat.template:
            raise ConfigError(
                f"the model of player {name!r} has another chat template than the run's model, and "
                "so another format of tool calls. Models that play with tools need the same one."
            )
        messages = setup.messages.initial(
            [*history, {"role": "user", "content": first}],
            self._actions.definitions,
            self._actions.parser,
            system,
        )
        agent.start(messages, self._actions.definitions)
        if self._watcher is not None:
            self._watcher.on_start(agent.record)
        return agent

    def _player(self, environment: BaseEnvironment | None) -> str:
        players = getattr(environment, "players", None)
        if players is None or not isinstance(players, Sequence) or isinstance(players, str):
            return "agent"  # the only one
        self._players = list(players)
        current = getattr(environment, "current_player", None)
        if not isinstance(current, str) or current not in players:
            raise EnvironmentFault(
                f"{type(environment).__name__}.current_player is {current!r}, expected one of its "
                f"players: {', '.join(map(str, players))}"
            )
        return current

    async def _continue(self, agent: Agent, messages: Sequence[Message]) -> None:
        """Adds what an agent reads next; one whose context is too long summarises it before."""
        if not agent.must_summarise(messages):
            agent.add_messages(messages)
            return
        agent.add_messages([{"role": "user", "content": self._setup.summary_prompt}])
        turn = await self._next_turn(agent)
        if turn is None:
            return
        turn.kind = "summary"
        turn.seconds = self._timer.turn_seconds
        summary = answer_of(turn.text, in_thought=turn.in_thought).strip()
        parts = [f"Summary of the conversation so far:\n{summary}", self.observation]
        turn.observation = "\n\n".join(filter(None, parts))
        agent.restart(turn.observation)
        if self._watcher is not None:
            self._watcher.on_turn(agent.record, turn)

    async def _next_turn(self, agent: Agent) -> TurnRecord | None:
        """Samples the agent's turn; None if there are no tokens or no time left, see the status."""
        if self._status is not None:
            return None
        self._timer.turn_seconds = {}
        started = self._timer.seconds
        if agent.tokens_left < 1:
            length, limit = agent.record.stream.path_length, self._setup.max_tokens
            why = f"no tokens left after {length}"
            if not agent.record.turns:
                why = (
                    f"the first observation, with the system prompt ({length:,} tokens), does not "
                    f"fit the context of {limit}. Shorten it, or set limits.max_observation."
                )
            self._end(EpisodeStatus.TRUNCATED_BY_TOKENS, why)
            return None
        if self._timer.is_over:
            self._end(EpisodeStatus.TRUNCATED_BY_TIME)
            return None
        keep = () if self._actions.parser is None else self._actions.parser.special_tokens
        with self._timer.component("engine"):
            timeout = self._timer.within(self._setup.limits.generation_timeout)
            turn = await agent.sample_turn(timeout, keep)
            turn.started = started
            if turn.finish_reason is FinishReason.DEADLINE:
                raise too_slow(timeout)
        return turn

    def _record_outcome(self, agent: Agent, turn: TurnRecord, status: EpisodeStatus | None) -> None:
        """Completes the record of a turn that was carried out; ends the episode if it is over."""
        turn.seconds = self._timer.turn_seconds
        own_reward = turn.reward
        turn.reward += agent.unplaced_reward
        agent.unplaced_reward = 0.0
        if len(self._agents) > 1 or "rewards" in turn.info:
            with self._timer.component("environment"):  # its rewards may be no numbers
                self._share_rewards(agent, turn, own_reward)
        max_turns = self._setup.limits.turn_limit(
            self._max_steps, has_tools=self._actions.parser is not None
        )
        self._num_turns += 1
        if status is not None:
            self._end(status)
        elif turn.finish_reason is FinishReason.CONTEXT or agent.tokens_left < 1:
            self._end(EpisodeStatus.TRUNCATED_BY_TOKENS)
        elif self._num_turns >= max_turns:
            why = None
            if self._max_steps is not None and max_turns < self._max_steps:
                why = (
                    f"cut after {max_turns} turns, and the environment has max_steps = "
                    f"{self._max_steps}. Raise inference.max_turns (or limits.max_turns), or leave "
                    "it out: the environment's own limit is the default."
                )
            self._end(EpisodeStatus.TRUNCATED_BY_TURNS, why)

    def _share_rewards(self, actor: Agent, turn: TurnRecord, own_reward: float) -> None:
        """Gives each player its share of `info["rewards"]`, on its last turn."""
        rewards = turn.info.get("rewards")
        for name, other in self._agents.items():
            actions = other.record.actions
            if turn.done and actions:
                actions[-1].done = True
            if not isinstance(rewards, Mapping) or name not in rewards:
                continue
            earned = float(rewards[name])
            if other is actor:
                turn.reward += earned - own_reward
            elif actions:
                actions[-1].reward += earned
            else:
                other.unplaced_reward += earned

    def _end(self, status: EpisodeStatus, why: str | None = None) -> None:
        self._status, self.result.error = status, why

    async def _or_record_failure(self, work: Coroutine[Any, Any, None]) -> None:
        """Gives a failure its status; an error outside of all components propagates."""
        try:
            await work
        except BaseException as error:
            if is_interrupt(error):
                raise
            status = self._timer.error_status
            if status is None:
                raise contained(error, "an episode")  # noqa: B904 - it has its cause
            text = str(error) if isinstance(error, TurnwiseError) else describe_error(error)
            is_late = isinstance(error, DeadlineExceeded) and self._timer.is_over
            if is_late and self._status is None:
                status = EpisodeStatus.TRUNCATED_BY_TIME
                limit = self._setup.limits.max_seconds
                text = f"the episode took longer than {limit:g} s. Raise limits.max_seconds."
            else:
                self.result.traceback = lines = user_traceback(error)
                if self._task.task is None and "NoneType" in text and ".task" in (lines or ""):
                    text = f"{text}. {NO_TASK}"
            self._end(status, text)

    def _fill_result(self) -> None:
        """Fills the result, and the trajectories that reward functions read."""
        assert self._status is not None
        result = self.result
        result.status = self._status
        names = dict.fromkeys([*self._players, *self._agents])
        result.agents = [self._agents[name].record for name in names if name in self._agents]
        if not result.agents:  # it failed before there was one
            result.agents = [AgentRecord()]
        for record in result.agents:
            trajectory = record.trajectory
            last = next((t for t in reversed(record.turns) if t.kind != "sub_agent"), None)
            if last is not None and not last.seconds:  # the turn was not carried out
                last.seconds = self._timer.turn_seconds
                last.info = {"unanswered": True}
            record.fill_trajectory()
            trajectory.status = self._status
            trajectory.error = result.error
            trajectory.seed = result.seed
            trajectory.task = self._task.task

    async def _score(self) -> None:
        with self._timer.component("reward"):
            for record in self.result.agents:
                record.reward = await self._setup.score(record.trajectory, self.environment)

    async def _clean_up(self) -> None:
        try:
            for agent in self._agents.values():
                agent.close()
            for agent in self._agents.values():
                agent.warn_of_difference()
        except Exception as error:
            _LOG.warning("ending a conversation with the engine failed: %s", describe_error(error))
        try:
            await self._actions.close()
        finally:
            await self._session.close()
        self.result.seconds = {**self._timer.component_seconds, "total": self._timer.seconds}
