"""One episode: an agent or several, one environment, and every way in which it can end."""

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from turnwise.chat import Message
from turnwise.deadlines import contained, episode_task, is_interrupt
from turnwise.env import BaseEnvironment
from turnwise.env.base import NO_TASK
from turnwise.env.catalog import EnvironmentFactory
from turnwise.episode.actions import Actions, Outcome
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
    error_message,
)
from turnwise.inference import FinishReason
from turnwise.tools import answer_of
from turnwise.types import EpisodeStatus
from turnwise.user_code import user_traceback

_LOG = logging.getLogger("turnwise")
_ONLY_AGENT = "agent"


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
        self._session: EnvironmentSession | None = None
        if source is not None:
            self._session = EnvironmentSession(
                source, setup.call_mode, setup.limits.max_observation, task.task
            )
        self._actions = Actions(
            setup.messages, setup.limits, self._timer, self._session, setup.tools, setup.parser
        )

    async def run(self) -> EpisodeResult:
        """Plays to the end, whatever it is, and closes everything.

        This is the one boundary where failures become data. An error outside of all components,
        such as a chat template that cannot render these messages, propagates; so does a
        cancellation.
        """
        async with episode_task() as task:
            try:
                try:
                    await self._play()
                except BaseException as error:
                    self._record_failure(error)
                self._fill_result()
                if self._status is not None and not self._status.is_error:
                    try:
                        await self._score()
                    except BaseException as error:
                        self._record_failure(error)
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
            try:
                outcome = await self._actions.act(turn.text, in_thought=turn.in_thought)
            finally:
                failure = agent.place_sub_agents()
            if failure is not None:
                with self._timer.component("engine"):
                    raise failure
            self._record_outcome(agent, turn, outcome)
            self.observation, messages = outcome.observation, outcome.messages
            if self._watcher is not None:
                self._watcher.on_turn(agent.record, turn)

    async def _begin(self) -> str:
        """Resets the environment and adds its tools; returns its system prompt."""
        prefix = ""
        if self._session is None:
            self._actions.begin()
        else:
            with self._timer.component("environment"):
                timeout = self._timer.within(self._setup.limits.reset_timeout)
                self.observation, prefix = await self._session.start(self.result.seed, timeout)
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
        session, name = self._session, _ONLY_AGENT
        if session is not None:
            with self._timer.component("environment"):
                name = self._player(session.environment)
        if name in self._agents:
            return self._agents[name]
        history: Sequence[Message] = ()
        if session is not None and self._agents:
            with self._timer.component("environment"):
                timeout = self._timer.within(self._setup.limits.step_timeout)
                prefix = await session.describe("get_prompt_prefix", timeout)
        elif session is not None:
            history = session.history  # it belongs to the first agent
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
            system,
            [*history, {"role": "user", "content": first}],
            self._actions.definitions,
            self._actions.parser,
        )
        if self._fits(agent, messages):
            agent.start(messages, self._actions.definitions)
            if self._watcher is not None:
                self._watcher.on_start(agent.record)
        return agent

    def _player(self, environment: BaseEnvironment | None) -> str:
        players = getattr(environment, "players", None)
        if players is None or not isinstance(players, Sequence) or isinstance(players, str):
            return _ONLY_AGENT
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
        if not self._fits(agent, messages):
            return
        if not agent.must_summarise(messages):
            agent.add_messages(messages)
            return
        agent.add_messages([{"role": "user", "content": self._setup.summary_prompt}])
        turn = await self._next_turn(agent)
        if turn is None:
            return
        turn.kind, turn.seconds = "summary", self._timer.turn_seconds
        summary = answer_of(turn.text, in_thought=turn.in_thought).strip()
        parts = [f"Summary of the conversation so far:\n{summary}", self.observation]
        turn.observation = "\n\n".join(filter(None, parts))
        agent.restart(turn.observation)
        if self._watcher is not None:
            self._watcher.on_turn(agent.record, turn)

    def _fits(self, agent: Agent, messages: Sequence[Message]) -> bool:
        """Ends the episode if messages are far too long: encoding them would take gigabytes."""
        chat = self._setup.for_player(agent.record.name).chat
        if not chat.is_longer_than(agent.max_tokens, messages):
            return True
        number = sum(len(str(message["content"])) for message in messages)
        why = f"no tokens left: {number} characters do not fit into {agent.max_tokens} tokens"
        self._end(EpisodeStatus.TRUNCATED_BY_TOKENS, why)
        return False

    async def _next_turn(self, agent: Agent) -> TurnRecord | None:
        """Samples the agent's turn; None if there are no tokens or no time left, see the status."""
        if self._status is not None:
            return None
        self._timer.turn_seconds = {}
        started = self._timer.seconds
        if agent.tokens_left < 1:
            length = agent.record.stream.path_length
            self._end(EpisodeStatus.TRUNCATED_BY_TOKENS, f"no tokens left after {length}")
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

    def _record_outcome(self, agent: Agent, turn: TurnRecord, outcome: Outcome) -> None:
        """Records the outcome of a turn, and ends the episode if it is over."""
        turn.state, turn.observation = outcome.state, outcome.observation
        turn.calls, turn.tool_results = outcome.calls, outcome.results
        turn.malformed, turn.other_format = outcome.malformed, outcome.other_format
        turn.info, turn.done = outcome.info, outcome.done
        turn.reward = outcome.reward + agent.unplaced_reward
        turn.seconds = self._timer.turn_seconds
        agent.unplaced_reward = 0.0
        if len(self._agents) > 1 or "rewards" in outcome.info:
            with self._timer.component("environment"):  # its rewards may be no numbers
                self._share_rewards(agent, turn, outcome)
        max_turns = self._setup.limits.turn_limit(
            self._max_steps, has_tools=self._actions.parser is not None
        )
        self._num_turns += 1
        if outcome.status is not None:
            self._end(outcome.status)
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

    def _share_rewards(self, actor: Agent, turn: TurnRecord, outcome: Outcome) -> None:
        """Gives each player its share of `info["rewards"]`, on its last turn."""
        rewards = outcome.info.get("rewards")
        for name, other in self._agents.items():
            actions = other.record.actions
            if outcome.done and actions:
                actions[-1].done = True
            if not isinstance(rewards, Mapping) or name not in rewards:
                continue
            earned = float(rewards[name])
            if other is actor:
                turn.reward += earned - outcome.reward
            elif actions:
                actions[-1].reward += earned
            else:
                other.unplaced_reward += earned

    def _end(self, status: EpisodeStatus, why: str | None = None) -> None:
        self._status, self.result.error = status, why

    def _record_failure(self, error: BaseException) -> None:
        """Gives a failure its status; an error outside of all components propagates."""
        if is_interrupt(error):
            raise error
        status = self._timer.error_status
        if status is None:
            raise contained(error, "an episode")
        if isinstance(error, DeadlineExceeded) and self._timer.is_over and self._status is None:
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
        if self._task.task is None and "NoneType" in text and ".task" in (lines or ""):
            text = f"{text}. {NO_TASK}"
        self._end(status, text)

    def _fill_result(self) -> None:
        """Fills the result, and the trajectories that reward functions read."""
        assert self._status is not None
        result = self.result
        result.status = self._status
        order = [*self._players, *self._agents]
        agents = sorted(self._agents.values(), key=lambda agent: order.index(agent.record.name))
        agents = agents or [Agent(self._setup)]  # it failed before there was one
        for agent in agents:
            agent.write_messages()
        result.agents = [agent.record for agent in agents]
        for record in result.agents:
            trajectory, turns = record.trajectory, record.actions
            last = next((t for t in reversed(record.turns) if t.kind != "sub_agent"), None)
            if last is not None and not last.seconds:  # the turn was not carried out
                last.seconds = self._timer.turn_seconds
                last.info = {"unanswered": True}
            trajectory.states = [turn.state for turn in turns]
            trajectory.actions = [turn.text for turn in turns]
            trajectory.observations = [turn.observation for turn in turns]
            trajectory.rewards = [turn.reward for turn in turns]
            trajectory.dones = [turn.done for turn in turns]
            trajectory.infos = [turn.info for turn in turns]
            trajectory.status, trajectory.error = self._status, result.error
            trajectory.seed, trajectory.task = result.seed, self._task.task

    async def _score(self) -> None:
        environment = None if self._session is None else self._session.environment
        with self._timer.component("reward"):
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
            if self._session is not None:
                await self._session.close(timeout)
        for agent in self._agents.values():
            if agent.conversation is not None:
                with contextlib.suppress(ConfigError):  # a template that takes them one by one
                    agent.conversation.warn_of_difference()
        self.result.seconds = {**self._timer.component_seconds, "total": self._timer.seconds}
