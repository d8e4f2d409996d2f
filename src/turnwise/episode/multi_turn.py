"""Conversations and episodes by hand: `MultiTurnInferenceEngine` and `MultiTurnChatHarness`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, overload

from turnwise.chat import Message
from turnwise.deadlines import run_sync
from turnwise.env import BaseEnvironment
from turnwise.env.catalog import EnvironmentSource
from turnwise.episode.actions import Actions
from turnwise.episode.agent import Agent
from turnwise.episode.collector import EpisodeCollector, environment_source
from turnwise.episode.episode import Episode
from turnwise.episode.manager import MultiTurnManager
from turnwise.episode.options import EpisodeLimits, make_setup
from turnwise.episode.summary import EpisodeSummary
from turnwise.episode.types import EpisodeResult, EpisodeTask
from turnwise.episode.watchdog import EpisodeTimer
from turnwise.errors import ConfigError
from turnwise.inference import BaseInferenceEngine, SamplingParams
from turnwise.types import EpisodeStatus, Trajectory


class EpisodeReport(Sequence[str]):
    """An episode that was played: the list of the agent's responses, and the summary, in one.

    `report[0]` is the first response, `report["num_turns"]` and `report.num_turns` are the
    summary's, `report.result` has every token.
    """

    def __init__(self, result: EpisodeResult) -> None:
        self.result = result
        self.summary = EpisodeSummary.of(result)

    @property
    def status(self) -> EpisodeStatus:
        return self.result.status

    @property
    def trajectory(self) -> Trajectory:
        return self.result.trajectory

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    @overload
    def __getitem__(self, index: str) -> Any: ...
    def __getitem__(self, index: int | slice | str) -> Any:
        return self.summary[index] if isinstance(index, str) else self.result.responses[index]

    def __len__(self) -> int:
        return len(self.result.responses)

    def __iter__(self) -> Iterator[str]:
        return iter(self.result.responses)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # like a list's

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "summary" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.summary, name)

    def __repr__(self) -> str:
        return f"{list(self.result.responses)!r} ({self.summary})"


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
            raise ConfigError(
                "enable_tools=True needs the tools: "
                "tool_manager=MultiTurnManager(registry, parser, environment)"
            )
        self.engine = engine
        self.max_turns = max_turns
        self._manager = tool_manager if enable_tools else None
        self._setup = make_setup(
            engine,
            tools=None if self._manager is None else self._manager.registry,
            parser="auto" if self._manager is None else self._manager.parser,
            system_prompt=system_prompt,
            **options,
        )
        self._agent: Agent | None = None
        self._actions: Actions | None = None
        self._num_episodes = 0

    def start_conversation(self, text: str) -> None:
        """Starts a new conversation with `text` as the user's first message."""
        self.close()
        setup = self._setup
        timer = EpisodeTimer(setup.waits)  # without max_seconds: people take their time
        actions = Actions(setup.messages, setup.limits, timer, None, setup.tools, setup.parser)
        actions.begin()
        messages = setup.messages.initial(
            setup.system_prompt, text, actions.definitions, actions.parser
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
                f"the conversation has reached max_turns={self.max_turns}. "
                "Begin another with start_conversation(text)."
            )
        if agent.tokens_left < 1:
            raise ConfigError(f"the context is full after {len(agent.record.stream)} tokens")
        keep = () if actions.parser is None else actions.parser.special_tokens
        turn = await agent.sample_turn(self._setup.limits.generation_timeout, keep, max_tokens)
        self._is_models_turn = False
        outcome = await actions.act(turn.text, in_thought=turn.in_thought)
        turn.calls, turn.tool_results = outcome.calls, outcome.results
        turn.malformed, turn.observation = outcome.malformed, outcome.observation
        if outcome.messages:
            agent.add_messages(outcome.messages)
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
        limits = _with_turns(self._setup.limits, max_turns or self.max_turns)
        setup = dataclasses.replace(self._setup, limits=limits)
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
        return str(self._setup.chat.tokenizer.decode(list(stream.ids), skip_special_tokens=False))

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
    `CollectorOptions`. The `prompts` of a trajectory are the
    prompt that its episode began with.
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
                "MultiTurnChatHarness needs one engine and one environment: "
                "MultiTurnChatHarness(engine, environment, max_turns=5)"
            )
        self.inference_engine = chosen
        self.environment = environment
        self.max_turns = max_turns
        self._collector = EpisodeCollector(
            chosen,
            environment,
            limits=_with_turns(limits or EpisodeLimits(max_tokens_per_turn=128), max_turns),
            sampling=sampling or SamplingParams(temperature=0.7),
            **options,
        )
        self._num_episodes = 0

    def run_episode(self, initial_prompt: str) -> Trajectory:
        """Plays an episode on the harness's own environment, which is left open."""
        task = EpisodeTask(self._next_seed(), prompt=initial_prompt)
        episode = Episode(self._collector.setup, self.environment, task)
        return _with_prompt(initial_prompt, run_sync(episode.run()))

    def run_batch(self, prompts: Sequence[str]) -> list[Trajectory]:
        """Plays one episode for each prompt, all at once, each on an environment of its own."""
        tasks = [
            EpisodeTask(self._next_seed(), group, prompt=prompt)
            for group, prompt in enumerate(prompts)
        ]
        played = run_sync(self._collector.play(tasks))
        return [_with_prompt(*pair) for pair in zip(prompts, played, strict=True)]

    def _next_seed(self) -> int:
        self._num_episodes += 1
        return self._num_episodes - 1


def _with_prompt(prompt: str, result: EpisodeResult) -> Trajectory:
    trajectory = result.trajectory
    trajectory.prompts = [prompt]
    return trajectory


def _with_turns(limits: EpisodeLimits, max_turns: int) -> EpisodeLimits:
    return dataclasses.replace(limits, max_turns=max_turns)
