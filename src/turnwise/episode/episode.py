"""One episode: an agent or several, one environment, and every way in which it can end."""

from __future__ import annotations

import functools
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
        self._max_turns = setup.limits.turn_limit(None)
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
        self.observation, prefix = await self._begin()
        messages: Sequence[Message] = ()
        previous: Agent | None = None
        while self._status is None:
            agent = self.agent_to_move = await self._agent_to_move(prefix)
            if agent is not previous:
                messages = [{"role": "user", "content": self.observation}]
            previous = agent
            if agent.record.turns:
                await self._continue(agent, messages)
            turn = await self._next_turn(agent)
            if turn is None:
                return
            outcome = await self._carry_out(agent, turn)
            self._record_outcome(agent, turn, outcome)
            self.observation, messages = outcome.observation, outcome.messages
            if self._watcher is not None:
                self._watcher.on_turn(agent.record, turn)

    async def _begin(self) -> tuple[str, str]:
        """Returns the first observation and the environment's system prompt."""
        if self._session is None:
            self._actions.begin()
            return "", ""
        with self._timer.component("environment"):
            timeout = self._timer.within(self._setup.limits.reset_timeout)
            begun = await self._session.start(self.result.seed, timeout)
            environment = self._session.environment
            self._max_steps = None if environment is None else environment.max_steps
        with self._timer.component("tools"):
            self._actions.begin()
        self._max_turns = self._setup.limits.turn_limit(
            self._max_steps, has_tools=self._actions.parser is not None
        )
        return begun

    async def _agent_to_move(self, prefix: str) -> Agent:
        """Returns the agent whose turn it is; a new one starts with its initial prompt."""
        name = _ONLY_AGENT
        if self._session is not None:
            with self._timer.component("environment"):
                name = self._player(self._session.environment)
        agent = self._agents.get(name)
        if agent is not None:
            return agent
        if self._agents and self._session is not None:
            with self._timer.component("environment"):
                timeout = self._timer.within(self._setup.limits.step_timeout)
                prefix = await self._session.prefix(timeout)
        # The group too: two groups may have the same seed, and must be sampled differently.
        seeds = (self.result.seed, self.result.group, self.result.member)
        agent = self._agents[name] = Agent(self._setup, name, seeds)
        agent.record.trajectory.prompts = [prefix, self.observation]
        agent.record.trajectory.seed = self.result.seed
        actions = self._actions
        system = "\n\n".join(filter(None, [self._setup.system_prompt, prefix]))
        first = "\n\n".join(filter(None, [self._task.prompt, self.observation]))
        # The history belongs to the first agent.
        history = (
            self._session.history if self._session is not None and len(self._agents) == 1 else []
        )
        messages = self._setup.messages.initial(
            system,
            history[0]["content"] if history else first,
            actions.definitions,
            actions.parser,
        )
        if history:
            messages += [*history[1:], {"role": "user", "content": first}]
        if not self._fits(agent, messages):
            return agent
        agent.start(messages, actions.definitions)
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
        if not self._setup.chat.is_longer_than(agent.max_tokens, messages):
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

    async def _carry_out(self, agent: Agent, turn: TurnRecord) -> Outcome:
        if self._actions.context is not None:
            self._actions.context.asked = functools.partial(self._answer_tool, agent)
        try:
            outcome = await self._actions.act(turn.text, in_thought=turn.in_thought)
        finally:
            failure = agent.place_sub_agents()
        if failure is not None:
            with self._timer.component("engine"):
                raise failure
        return outcome

    async def _answer_tool(
        self, agent: Agent, messages: Sequence[Message], max_tokens: int | None
    ) -> str:
        timeout = self._timer.within(self._setup.limits.generation_timeout)
        return await agent.ask(messages, max_tokens, timeout)

    def _record_outcome(self, agent: Agent, turn: TurnRecord, outcome: Outcome) -> None:
        """Records the outcome of a turn, and ends the episode if it is over."""
        self._num_turns += 1
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
        if outcome.status is not None:
            self._end(outcome.status)
        elif turn.finish_reason is FinishReason.CONTEXT or agent.tokens_left < 1:
            self._end(EpisodeStatus.TRUNCATED_BY_TOKENS)
        elif self._num_turns >= self._max_turns:
            why = None
            if self._max_steps is not None and self._max_turns < self._max_steps:
                why = (
                    f"cut after {self._max_turns} turns, and the environment has max_steps = "
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
        agents = self._in_order()
        for agent in agents:
            agent.write_messages()
        result.agents = [agent.record for agent in agents]
        for record in result.agents:
            trajectory, turns = record.trajectory, record.actions
            own = [turn for turn in record.turns if turn.kind != "sub_agent"]
            if own and not own[-1].seconds:  # the turn was not carried out
                own[-1].seconds = self._timer.turn_seconds
                own[-1].info = {"unanswered": True}
            trajectory.states = [turn.state for turn in turns]
            trajectory.actions = [turn.text for turn in turns]
            trajectory.observations = [turn.observation for turn in turns]
            trajectory.rewards = [turn.reward for turn in turns]
            trajectory.dones = [turn.done for turn in turns]
            trajectory.infos = [turn.info for turn in turns]
            trajectory.status, trajectory.error = self._status, result.error
            trajectory.seed, trajectory.task = result.seed, self._task.task

    def _in_order(self) -> list[Agent]:
        """Returns the agents in the order of the environment's players; at least one."""
        ordered = sorted(self._agents.items(), key=lambda item: _place(item[0], self._players))
        return [agent for _, agent in ordered] or [Agent(self._setup)]

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
        if self._setup.may_compare():
            for agent in self._agents.values():
                agent.log_difference()
        self.result.seconds = {**self._timer.component_seconds, "total": self._timer.seconds}


def _place(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)
