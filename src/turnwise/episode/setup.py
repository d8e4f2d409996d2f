"""What the episodes of one collector share: the engine, the chat format, the tools, the limits."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from turnwise.chat import ChatFormat
from turnwise.env import BaseEnvironment
from turnwise.episode.environment_session import CallMode
from turnwise.episode.messages import MessageBuilder
from turnwise.episode.options import (
    SUMMARY_PROMPT,
    EpisodeLimits,
    EpisodeOptions,
    ParserChoice,
    Thoughts,
)
from turnwise.episode.watchdog import Waits
from turnwise.errors import ConfigError
from turnwise.inference import SamplingParams
from turnwise.inference.base import BaseInferenceEngine
from turnwise.reward import Reward
from turnwise.reward.compute import RewardLimit
from turnwise.reward.function import RewardFunction, step_rewards
from turnwise.tools import ToolRegistry
from turnwise.tools.thoughts import (
    THOUGHT_ENDS,
    THOUGHT_MARKS,
    may_open_thought,
    opens_thought,
)
from turnwise.types import Trajectory

_LOG = logging.getLogger("turnwise")
_MAX_COMPARED = 4
# More tokens than the tag that starts a thought and the space after it can have.
_NUM_TAG_TOKENS = 12


@dataclass
class EpisodeSetup:
    """What the episodes of one collector share; `make_setup` fills in the defaults."""

    engine: BaseInferenceEngine
    chat: ChatFormat
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    tools: ToolRegistry | None = None
    """The environment's own tools are added. Without any tools each turn is an action."""
    parser: ParserChoice = "auto"
    system_prompt: str = ""
    """Precedes the environment's own system prompt."""
    seed: int = 0
    """Seed of the sampling; the seed of the episode is mixed in."""
    reward: RewardFunction = field(default_factory=lambda: RewardFunction.of(None))
    reward_limit: RewardLimit | None = None
    """Limits the rewards that are computed at once; it belongs to one event loop."""
    call_mode: CallMode = field(default_factory=CallMode)
    summary_prompt: str = SUMMARY_PROMPT
    thoughts: Thoughts = "keep"
    waits: Waits = field(default_factory=Waits)

    def __post_init__(self) -> None:
        self.waits.silence.engine = self.engine
        if self.thoughts != "keep" and "<|channel|>" in self.chat.template:
            raise ConfigError(
                f"thoughts got {self.thoughts!r}, and this chat template has channels (harmony), "
                "whose messages cannot be written again. Set thoughts to 'keep'."
            )
        self.messages = MessageBuilder(self.chat)
        self._compared = itertools.count(1)  # shared by copies, and safe to count in any thread

    @cached_property
    def thought_marks(self) -> tuple[str, ...]:
        """The tags of thoughts that this tokenizer would drop as special tokens."""
        encode, decode = self.chat.tokenizer.encode, self.chat.decode
        return tuple(
            mark for mark in THOUGHT_MARKS if not decode(encode(mark, add_special_tokens=False))
        )

    @cached_property
    def may_open_thought(self) -> bool:
        """Whether a turn may begin inside a thought, because the chat template starts one."""
        return may_open_thought(self.chat.template)

    def begins_in_thought(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a turn after these tokens begins inside a thought, which the template started."""
        return self.may_open_thought and opens_thought(self._last_text(prompt_ids))

    def may_think(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a turn after these tokens may have a thought: the template has not ended one."""
        if not self.may_open_thought:
            return False
        return not self._last_text(prompt_ids).rstrip().endswith(THOUGHT_ENDS)

    def _last_text(self, prompt_ids: Sequence[int]) -> str:
        last = list(prompt_ids[max(0, len(prompt_ids) - _NUM_TAG_TOKENS) :])
        return str(self.chat.tokenizer.decode(last, skip_special_tokens=False))

    def may_compare(self) -> bool:
        """Whether to compare the stream with a full rendering: in the first few episodes only."""
        return next(self._compared) <= _MAX_COMPARED

    def in_this_loop(self, reward_concurrency: int | None = None) -> EpisodeSetup:
        """Returns a copy for this event loop; several loops may play at the same time."""
        own = copy.copy(self)
        own.reward_limit = RewardLimit(self.reward, reward_concurrency)
        own.waits = Waits(self.waits.silence)
        return own

    async def score(self, trajectory: Trajectory, environment: BaseEnvironment | None) -> Reward:
        """Returns the reward of an episode that has just ended; its environment is still open."""
        timeout = self.limits.reward_timeout
        if self.reward.function is step_rewards:  # checked when they were earned
            return Reward(trajectory.total_reward, tuple(trajectory.rewards))
        if self.reward_limit is None:
            return await self.reward.score(trajectory, environment, timeout=timeout)
        async with self.reward_limit.slot():
            return await self.reward.score(trajectory, environment, timeout=timeout)


def make_setup(
    engine: BaseInferenceEngine, options: EpisodeOptions | None = None, **more: Any
) -> EpisodeSetup:
    """Returns the setup for these options; `more` are fields of `EpisodeOptions`, by name."""
    options = dataclasses.replace(options or EpisodeOptions(), **more)
    tools = options.tools
    return EpisodeSetup(
        engine,
        options.chat_format or format_for(engine, options.enable_thinking),
        options.limits or EpisodeLimits(),
        options.sampling or SamplingParams(),
        tools if tools is None or isinstance(tools, ToolRegistry) else ToolRegistry(tools),
        options.parser,
        options.system_prompt or "",
        options.seed,
        RewardFunction.of(options.reward_fn),
        call_mode=CallMode(options.environment_calls),
        summary_prompt=options.summary_prompt,
        thoughts=options.thoughts,
    )


def format_for(engine: BaseInferenceEngine, enable_thinking: bool | None = None) -> ChatFormat:
    """Returns the chat format of an engine's tokenizer; plain text for one without a template."""
    tokenizer = engine.tokenizer
    if tokenizer is None:
        raise ConfigError("this engine has no tokenizer. Pass chat_format=ChatFormat(tokenizer).")
    if getattr(tokenizer, "chat_template", None):
        return ChatFormat(tokenizer, enable_thinking=enable_thinking)
    _LOG.warning(
        "The tokenizer has no chat template; conversations are written as plain text. "
        "Choose another with chat_format=ChatFormat(tokenizer, name)."
    )
    return ChatFormat(tokenizer, "plain", enable_thinking=enable_thinking)
