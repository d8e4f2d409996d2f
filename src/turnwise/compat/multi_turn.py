"""Conversations, tools and episodes by hand: `MultiTurnInferenceEngine` and its relatives."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.chat import Message
from turnwise.deadlines import run_sync
from turnwise.env import BaseEnvironment
from turnwise.env.catalog import EnvironmentSource
from turnwise.episode.actions import Actions
from turnwise.episode.agent import Agent
from turnwise.episode.collector import EpisodeCollector, environment_source
from turnwise.episode.environment_session import EnvironmentSession
from turnwise.episode.episode import Episode
from turnwise.episode.options import EpisodeLimits, ParserChoice, make_setup
from turnwise.episode.types import EpisodeResult, EpisodeSummary, EpisodeTask, TurnRecord
from turnwise.episode.watchdog import EpisodeTimer
from turnwise.errors import ConfigError
from turnwise.inference import BaseInferenceEngine, FinishReason, SamplingParams
from turnwise.tools import ToolCall, ToolRegistry, ToolResult
from turnwise.types import EpisodeStatus, Trajectory


class EpisodeReport(list[str]):
    """An episode that was played: the list of the agent's responses, and the summary, in one.

    `report[0]` is the first response, `report["num_turns"]` and `report.num_turns` are the
    summary's, `report.result` has every token.
    """

    def __init__(self, result: EpisodeResult) -> None:
        super().__init__(result.responses)
        self.result = result
        self.summary = EpisodeSummary.of(result)
        self.status: EpisodeStatus = result.status
        self.trajectory: Trajectory = result.trajectory

    def __getitem__(self, index: Any) -> Any:
        return self.summary[index] if isinstance(index, str) else super().__getitem__(index)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "summary" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.summary, name)

    def __repr__(self) -> str:
        return f"{super().__repr__()} ({self.summary})"


@dataclass(frozen=True)
class ManagedTurn:
    """One output of a model, and what carrying it out gave."""

    model_output: str
    observation_before: str
    """The observation that the output answers."""
    tool_call: ToolCall
    """The last call in the output, with its result. An output without a call is an action, shown
    as a call of `environment_step`; a call that could not be read has no name, and its result says
    why."""
    observation: str
    """The text that the model reads next."""
    reward: float = 0.0
    done: bool = False
    """Whether the episode is over."""
    info: dict[str, Any] = field(default_factory=dict)
    tool_calls: Sequence[ToolCall] = ()
    """All calls in the output."""
    tool_results: Sequence[ToolResult] = ()
    """The results of the calls that were executed, with times and kinds of failure."""


class MultiTurnManager:
    """Carries out the outputs of a model, with tools and an environment, and counts them.

    The caller provides the outputs; `MultiTurnInferenceEngine` takes a manager and samples them.

    >>> from turnwise.tools import JSONActionParser
    >>> registry = ToolRegistry()
    >>> @registry.register
    ... def add(a: int, b: int) -> int:
    ...     return a + b
    >>> manager = MultiTurnManager(registry, JSONActionParser())
    >>> manager.step('{"tool": "add", "arguments": {"a": 1, "b": 2}}', "").tool_call.result
    3
    """

    def __init__(
        self,
        registry: ToolRegistry,
        parser: ParserChoice = "json",
        environment: BaseEnvironment | None = None,
        limits: EpisodeLimits | None = None,
    ) -> None:
        self.registry = registry
        self.parser = parser
        self.environment = environment
        self.limits = limits or EpisodeLimits()
        self._actions: Actions | None = None
        self.reset()

    def reset(self) -> None:
        """Forgets the turns, for a new episode; the caller resets the environment."""
        self.close()
        self.turns: list[ManagedTurn] = []
        self.summary = EpisodeSummary(num_episodes=1)
        session = EnvironmentSession(self.environment, self.limits, EpisodeTimer())
        if self.environment is not None:
            session.attach(self.environment)
        self._actions = Actions(session, None, self.registry, self.parser)
        self._actions.begin()

    def step(self, model_output: str, observation: str = "") -> ManagedTurn:
        """Carries out one output of the model, which it gave to `observation`.

        A failing environment raises an `EnvironmentFault` or its own exception; a failing tool is
        reported in the turn.
        """
        assert self._actions is not None
        played = TurnRecord((0, 0), model_output, FinishReason.STOP, 0, calls=[], tool_results=[])
        _, status = run_sync(self._actions.act(played))
        self.summary.add_turn(played.tool_results, played.malformed)
        self.summary.total_reward += played.reward
        self.summary.num_successes += bool(played.info.get("success", False))
        if status is not None:
            self.summary.statuses[status] += 1
        call = played.tool_call
        if call is None and played.malformed is not None:
            call = ToolCall("", {}, played.observation, success=False)
        elif call is None:
            action = {"action": model_output}
            call = ToolCall("environment_step", action, played.observation, success=True)
        turn = ManagedTurn(
            model_output,
            observation,
            call,
            played.observation,
            played.reward,
            status is not None,
            played.info,
            played.calls,
            played.tool_results,
        )
        self.turns.append(turn)
        return turn

    def get_episode_summary(self) -> EpisodeSummary:
        """Returns turns, calls by tool and failures by kind since the last `reset`."""
        return self.summary

    def close(self) -> None:
        """Closes the context of the tools. May be called twice."""
        if self._actions is not None and self._actions.context is not None:
            self._actions.context.close()


class MultiTurnInferenceEngine:
    """A conversation with a model, by hand or with an environment.

    With `enable_tools` the calls in an answer are executed with the `tool_manager`'s tools, and
    the model reads their results next. `options` are fields of `EpisodeOptions`, such as
    `sampling` and `limits`.
    """

    def __init__(
        self,
        engine: BaseInferenceEngine,
        max_turns: int = 10,
        system_prompt: str | None = None,
        tool_manager: MultiTurnManager | None = None,
        enable_tools: bool = False,
        **options: Any,
    ) -> None:
        if enable_tools and tool_manager is None:
            raise ConfigError("enable_tools=True needs tool_manager=MultiTurnManager(registry)")
        self.engine = engine
        self.max_turns = max_turns
        self._manager = tool_manager if enable_tools else None
        self.setup = make_setup(
            engine,
            tools=None if self._manager is None else self._manager.registry,
            parser="auto" if self._manager is None else self._manager.parser,
            system_prompt=system_prompt,
            **options,
        )
        """What its conversations share; their turns are limited by `max_turns`."""
        self._agent: Agent | None = None
        self._actions: Actions | None = None
        self._num_episodes = 0

    def start_conversation(self, text: str) -> None:
        """Starts a new conversation with `text` as the user's first message."""
        self.close()
        setup = self.setup
        timer = EpisodeTimer(setup.waits)  # without max_seconds: people take their time
        session = EnvironmentSession(None, setup.limits, timer)
        actions = Actions(session, setup.messages, setup.tools, setup.parser)
        actions.begin()
        first = {"role": "user", "content": text}
        messages = setup.messages.initial(
            [first], actions.definitions, actions.parser, setup.system_prompt
        )
        agent = Agent(setup, seeds=(0, 0))
        agent.start(messages, actions.definitions)
        self._agent, self._actions = agent, actions
        self._is_models_turn = True

    def add_message(self, text: str, role: str = "user") -> None:
        """Adds a message to the model, after its turn."""
        agent = self._conversing()
        if self._is_models_turn:
            raise ConfigError("it is the model's turn: call step() first")
        agent.add_messages([{"role": role, "content": text}])
        self._is_models_turn = True

    def step(self, max_tokens: int = 256) -> str:
        """Samples the model's next turn. Call `add_message` after it, unless it called tools."""
        return run_sync(self._step(max_tokens))

    async def _step(self, max_tokens: int) -> str:
        agent, actions = self._conversing(), self._actions
        assert actions is not None
        if not self._is_models_turn:
            raise ConfigError("there is nothing to answer: call add_message(text) first")
        if len(agent.record.turns) >= self.max_turns:
            raise ConfigError(
                f"reached max_turns={self.max_turns}: begin another with start_conversation(text)"
            )
        if agent.tokens_left < 1:
            raise ConfigError(f"the context is full after {len(agent.record.stream)} tokens")
        keep = () if actions.parser is None else actions.parser.special_tokens
        turn = await agent.sample_turn(self.setup.limits.generation_timeout, keep, max_tokens)
        self._is_models_turn = False
        messages, _ = await actions.act(turn)
        if messages:
            agent.add_messages(messages)
            self._is_models_turn = True
        return turn.text

    def run_episode(
        self,
        environment: EnvironmentSource | None = None,
        initial_prompt: str = "",
        max_turns: int | None = None,
        seed: int | None = None,
    ) -> EpisodeReport:
        """Plays an episode and returns its responses and its summary.

        An environment that is given as an object is used and left open. The default seed is the
        number of the episode, counted from 0.
        """
        limits = dataclasses.replace(self.setup.limits, max_turns=max_turns or self.max_turns)
        setup = self.setup.replaced(limits=limits)
        if seed is None:
            seed, self._num_episodes = self._num_episodes, self._num_episodes + 1
        if environment is None and self._manager is not None:
            environment = self._manager.environment
        task = EpisodeTask(seed, prompt=initial_prompt)
        episode = Episode(setup, environment_source(environment), task)
        return EpisodeReport(run_sync(episode.run()))

    def format_conversation(self) -> str:
        """Returns the conversation as the model sees it, with special tokens."""
        stream = self._conversing().record.stream
        return str(self.setup.chat.tokenizer.decode(list(stream.ids), skip_special_tokens=False))

    @property
    def messages(self) -> list[Message]:
        """The conversation as messages."""
        return list(self._conversing().record.messages)

    def close(self) -> None:
        """Ends the conversation; the engine stays open. May be called twice."""
        if self._agent is not None:
            self._agent.close()
        if self._actions is not None and self._actions.context is not None:
            self._actions.context.close()
        self._agent = self._actions = None

    def _conversing(self) -> Agent:
        if self._agent is None:
            raise ConfigError("there is no conversation yet: call start_conversation(text) first")
        return self._agent


class MultiTurnChatHarness:
    """Plays episodes of one environment, each from a prompt.

    `engine` is another name for `inference_engine`, and `options` are fields of
    `CollectorOptions`. The `prompts` of a trajectory are the prompt that its episode began with.
    """

    def __init__(
        self,
        inference_engine: BaseInferenceEngine | None = None,
        environment: BaseEnvironment | None = None,
        max_turns: int = 5,
        *,
        engine: BaseInferenceEngine | None = None,
        sampling: SamplingParams | None = None,
        limits: EpisodeLimits | None = None,
        **options: Any,
    ) -> None:
        chosen = inference_engine if engine is None else engine
        if chosen is None or environment is None or None not in (inference_engine, engine):
            raise ConfigError(
                "expected one engine and one environment: MultiTurnChatHarness(engine, environment)"
            )
        self.inference_engine = chosen
        self.environment = environment
        self.max_turns = max_turns
        limits = limits or EpisodeLimits(max_tokens_per_turn=128)
        self._collector = EpisodeCollector(
            chosen,
            environment,
            limits=dataclasses.replace(limits, max_turns=max_turns),
            sampling=sampling or SamplingParams(temperature=0.7),
            **options,
        )
        self._num_episodes = 0

    def run_episode(self, initial_prompt: str) -> Trajectory:
        """Plays an episode on the harness's own environment, which is left open."""
        (task,) = self._tasks([initial_prompt])
        trajectory = run_sync(
            Episode(self._collector.setup, self.environment, task).run()
        ).trajectory
        trajectory.prompts = [initial_prompt]
        return trajectory

    def run_batch(self, prompts: Sequence[str]) -> list[Trajectory]:
        """Plays one episode for each prompt, all at once, each on an environment of its own."""
        played = run_sync(self._collector.play(self._tasks(prompts)))
        for prompt, result in zip(prompts, played, strict=True):
            result.trajectory.prompts = [prompt]
        return [result.trajectory for result in played]

    def _tasks(self, prompts: Sequence[str]) -> list[EpisodeTask]:
        first = self._num_episodes
        self._num_episodes += len(prompts)
        return [
            EpisodeTask(first + group, group, prompt=prompt) for group, prompt in enumerate(prompts)
        ]
