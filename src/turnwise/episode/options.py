"""The limits and options of episodes, and the setup that the episodes of a collector share."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from turnwise.chat import ChatFormat
from turnwise.config import ConfigStore, LimitsConfig
from turnwise.config.sections import ErrorPolicy, Thoughts
from turnwise.env import BaseEnvironment
from turnwise.episode.engine_sessions import EngineSession
from turnwise.episode.environment_session import CallMode, EnvironmentCalls
from turnwise.episode.messages import MessageBuilder
from turnwise.episode.watchdog import Waits
from turnwise.errors import ConfigError, did_you_mean
from turnwise.inference import GenerationRequest, SamplingParams
from turnwise.inference.base import BaseInferenceEngine
from turnwise.reward import Reward, RewardFn
from turnwise.reward.function import RewardFunction, reward_slots, step_rewards
from turnwise.tools import ActionParser, Tool, ToolRegistry
from turnwise.types import Trajectory

Options = TypeVar("Options", bound="EpisodeOptions")
ParserChoice: TypeAlias = ActionParser | str
"""A parser of tool calls, or its name; `auto` chooses the one that fits the chat template."""

SUMMARY_PROMPT = (
    "The conversation has become too long to continue. Write a summary with which you can go on: "
    "the task, what has been done and found out so far, and what to do next. All else will be "
    "forgotten."
)


class _Default(int):
    """A number that nobody gave: the settings of a run come before it."""


@dataclass
class EpisodeLimits(LimitsConfig):
    """The limits of one episode: the settings of the section `limits`, without their `inference`.

    None means no limit, except for `max_turns`: see `turn_limit`. The environment's `max_steps` is
    a limit as well. A turn that `max_tokens_per_turn` cuts is an action like any other. After a
    summary, `max_tokens` counts those since then. In a run, `max_turns` and `max_tokens_per_turn`
    default to `inference.max_turns` and `inference.max_tokens`.

    >>> EpisodeLimits(max_turns=5).max_tokens_per_turn
    512
    """

    max_tokens_per_turn: int | None = _Default(512)

    def horizon(self, max_steps: int | None, *, has_tools: bool = False) -> int | None:
        """Return the most tokens that an agent can sample in an episode; None without a limit.

        The arguments are those of `turn_limit`.

        >>> EpisodeLimits(max_turns=4, max_tokens_per_turn=100).horizon(15)
        400
        """
        limits = []
        if self.max_tokens_per_turn is not None:
            num_turns = self.turn_limit(max_steps, has_tools=has_tools)
            limits.append(num_turns * self.max_tokens_per_turn)
        if self.max_tokens is not None and self.max_context_tokens is None:
            limits.append(self.max_tokens)
        return min(limits, default=None)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "max_tool_calls" or name.endswith(("timeout", "seconds")) else 1
            if value is not None and not (isinstance(value, int | float) and value >= least):
                raise ConfigError(
                    f"{name} got {value!r}, expected a number from {least} up, or None"
                )
        per_turn, thinking = self.max_tokens_per_turn, self.max_thinking_tokens
        if per_turn is not None and thinking is not None and thinking >= per_turn:
            raise ConfigError(
                f"max_thinking_tokens got {thinking}, expected less than the {per_turn} tokens of "
                "a turn (max_tokens_per_turn): otherwise no tokens are left for the answer"
            )


def episode_limits(config: ConfigStore, given: EpisodeLimits | None = None) -> EpisodeLimits:
    """Return the limits of an episode by the settings; `given` replaces their section `limits`.

    Where that says nothing, turns and tokens per turn are those of the section `inference`.
    """
    if not isinstance(given, EpisodeLimits | None):
        raise ConfigError(
            f"limits got {given!r:.80}, expected turnwise.EpisodeLimits: "
            "limits=EpisodeLimits(max_turns=5)."
        )
    inference, limits = config.inference, given or config.limits
    max_turns = limits.max_turns or inference.max_turns
    if inference.max_turns not in (None, max_turns):
        raise ConfigError(
            f"inference.max_turns got {inference.max_turns} and limits.max_turns got {max_turns}, "
            "and both limit the turns of an episode. Set one of them."
        )
    num_tokens = limits.max_tokens_per_turn
    is_unset = num_tokens is None if given is None else isinstance(num_tokens, _Default)
    values = {
        **vars(limits),
        "max_turns": max_turns if inference.multi_turn else 1,
        "max_tokens_per_turn": inference.max_tokens if is_unset else num_tokens,
    }
    return EpisodeLimits(**values)


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions:
    """How each episode is played."""

    chat_format: ChatFormat | None = None
    """None takes the chat template of the engine's tokenizer."""
    limits: EpisodeLimits | None = None
    sampling: SamplingParams | None = None
    tools: ToolRegistry | Iterable[Tool | Callable[..., Any]] | None = None
    parser: ParserChoice = "auto"
    system_prompt: str | None = None
    """Precedes the environment's own system prompt."""
    reward_fn: RewardFn | None = None
    """None takes the sum of the step rewards."""
    seed: int = 0
    """Seed of the sampling; the seed of the episode is mixed in."""
    enable_thinking: bool | None = None
    """Whether the chat template lets the model think; None keeps the template's default."""
    thoughts: Thoughts = "keep"
    summary_prompt: str = SUMMARY_PROMPT
    """The message that asks for a summary, see `EpisodeLimits.max_context_tokens`."""
    environment_calls: EnvironmentCalls = "auto"
    engines: Mapping[str, BaseInferenceEngine] = field(default_factory=dict)
    """The engines of an environment's players, by name; other players have the collector's."""

    def __post_init__(self) -> None:
        _check_choice("environment_calls", self.environment_calls, EnvironmentCalls)
        _check_choice("thoughts", self.thoughts, Thoughts)


@dataclass(frozen=True, kw_only=True)
class CollectorOptions(EpisodeOptions):
    """How each episode is played, how many at a time, and what happens to those that fail."""

    max_concurrency: int = 512
    reward_concurrency: int | None = None
    """Rewards computed at the same time; None chooses by the kind of the reward function."""
    on_error: ErrorPolicy = "retry"
    num_retries: int = 2
    """Used by the error policy `retry`."""
    report_after: float = 30.0
    """Seconds without any progress after which the log says what the episodes wait for."""
    stall_timeout: float | None = 900.0
    """Seconds without a result from the engine after which the collection fails."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_choice("on_error", self.on_error, ErrorPolicy)
        if self.max_concurrency < 1 or self.num_retries < 0 or self.report_after <= 0:
            raise ConfigError(
                f"got max_concurrency={self.max_concurrency}, num_retries={self.num_retries}, "
                f"report_after={self.report_after}; expected at least 1, at least 0, more than 0"
            )

    @property
    def num_attempts(self) -> int:
        """How often an episode is played at most, until it does not fail."""
        return 1 + (self.num_retries if self.on_error == "retry" else 0)


def _check_choice(name: str, value: object, choices: Any) -> None:
    expected = typing.get_args(choices)
    if value not in expected:
        raise ConfigError(f"{name} got {value!r}, expected one of {', '.join(map(repr, expected))}")


class EpisodeSetup:
    """What the episodes of one collector share: an engine, and options with their defaults."""

    def __init__(self, engine: BaseInferenceEngine, options: EpisodeOptions) -> None:
        tools = options.tools
        self.engine = engine
        self.chat = options.chat_format or _format_for(engine, options.enable_thinking)
        self.messages = MessageBuilder(self.chat)
        self.limits = options.limits or EpisodeLimits()
        self.sampling = options.sampling or SamplingParams()
        if tools is not None and not isinstance(tools, ToolRegistry):
            tools = ToolRegistry(tools)
        self.tools = tools
        """The environment's own tools are added. Without any tools each turn is an action."""
        self.parser = options.parser
        self.system_prompt = options.system_prompt or ""
        self.seed = options.seed
        self.reward = RewardFunction(options.reward_fn)
        self.reward_slots: contextlib.AbstractAsyncContextManager[Any] = contextlib.nullcontext()
        """Limits the rewards that are computed at once; it belongs to one event loop."""
        self.call_mode = CallMode(options.environment_calls)
        self.summary_prompt = options.summary_prompt
        self.thoughts = options.thoughts
        self.waits = Waits(engine)
        self._players = {
            name: (one, _format_for(one, options.enable_thinking))
            for name, one in options.engines.items()
        }
        """Engine and chat format of the players that have their own."""
        if self.thoughts != "keep" and "<|channel|>" in self.chat.template:
            raise ConfigError(
                f"thoughts got {self.thoughts!r}, and this chat template has channels (harmony), "
                "whose messages cannot be written again. Set thoughts to 'keep'."
            )

    @property
    def max_tokens(self) -> int:
        """The most tokens of a conversation."""
        length = self.engine.context_length
        return min(length, self.limits.max_tokens or length)

    def request(
        self,
        prompt_ids: Sequence[int],
        most: Iterable[int | None],
        seed: int,
        timeout: float | None,
        session: EngineSession,
    ) -> GenerationRequest:
        """Returns the request for a turn, of as many tokens as all of `most` and the context allow.

        None in `most` is no limit.
        """
        num_left = self.max_tokens - len(prompt_ids)
        return GenerationRequest(
            prompt_ids,
            min([num_left, *(number for number in most if number is not None)]),
            self.sampling,
            stop_ids=self.chat.stop_ids,
            stop_strings=self.chat.stop_strings,
            seed=seed,
            timeout=timeout,
            session=session.name,
            branch_of=session.branch_of,
        )

    def for_player(self, name: str) -> EpisodeSetup:
        """Returns the setup of a player, which may have an engine of its own."""
        if name not in self._players:
            return self
        engine, chat = self._players[name]
        return self.replaced(engine=engine, chat=chat, messages=MessageBuilder(chat))

    def in_this_loop(self, reward_concurrency: int | None = None) -> EpisodeSetup:
        """Returns a copy for this event loop; several loops may play at the same time."""
        slots = reward_slots(self.reward, reward_concurrency)
        return self.replaced(reward_slots=slots, waits=Waits(self.engine))

    def replaced(self, **attributes: Any) -> EpisodeSetup:
        """Returns a copy with other values of these attributes."""
        if unknown := attributes.keys() - vars(self).keys():
            raise AttributeError(f"an EpisodeSetup has no {min(unknown)!r}")
        other = copy.copy(self)
        vars(other).update(attributes)
        return other

    async def score(self, trajectory: Trajectory, environment: BaseEnvironment | None) -> Reward:
        """Returns the reward of an episode that has just ended; its environment is still open."""
        timeout = self.limits.reward_timeout
        if self.reward.function is step_rewards:  # checked when they were earned
            return Reward(trajectory.total_reward, tuple(trajectory.rewards))
        async with self.reward_slots:
            return await self.reward.score(trajectory, environment, timeout=timeout)


def make_setup(
    engine: BaseInferenceEngine, options: EpisodeOptions | None = None, **more: Any
) -> EpisodeSetup:
    """Returns the setup for these options; `more` are fields of `EpisodeOptions`, by name."""
    return EpisodeSetup(engine, with_options(options or EpisodeOptions(), more))


def with_options(options: Options, more: Mapping[str, Any]) -> Options:
    """Returns options of which some have other values; an unknown name is an error."""
    known = [field.name for field in dataclasses.fields(options)]
    for name in more:
        if name not in known:
            raise ConfigError(f"there is no option {name!r}. {did_you_mean(name, known)}")
    return dataclasses.replace(options, **more)


def _format_for(engine: BaseInferenceEngine, enable_thinking: bool | None = None) -> ChatFormat:
    tokenizer = engine.tokenizer
    if tokenizer is None:
        raise ConfigError("this engine has no tokenizer. Pass chat_format=ChatFormat(tokenizer).")
    if getattr(tokenizer, "chat_template", None):
        return ChatFormat(tokenizer, enable_thinking=enable_thinking)
    logging.getLogger("turnwise").warning(
        "The tokenizer has no chat template; conversations are written as plain text. "
        "Choose another with chat_format=ChatFormat(tokenizer, name)."
    )
    return ChatFormat(tokenizer, "plain", enable_thinking=enable_thinking)
