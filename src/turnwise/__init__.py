"""turnwise: train language-model agents by reinforcement learning in your own environments.

Everything public can be imported from here. Names are looked up when they are first used, so
`import turnwise` is quick and pulls in no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives. The block for type checkers below says the same; a test compares.
_EXPORTS: dict[str, tuple[str, ...]] = {
    "turnwise.config": (
        "CheckpointConfig",
        "ConfigStore",
        "EnvironmentConfig",
        "InferenceConfig",
        "LoggingConfig",
        "ModelConfig",
        "RayConfig",
        "TrainingConfig",
    ),
    "turnwise.errors": (
        "ConfigError",
        "DeadlineExceeded",
        "EnvironmentFault",
        "MissingExtraError",
        "RewardError",
        "ToolError",
        "TurnwiseError",
    ),
    "turnwise.env": (
        "AlphabetSortEnvironment",
        "BaseEnvironment",
        "CheckReport",
        "CustomGameEnvironment",
        "EpisodeStatus",
        "Finding",
        "GridWorldEnvironment",
        "GuessNumberEnvironment",
        "GymnasiumEnvironment",
        "ReasoningGymEnvironment",
        "RolloutData",
        "ShopEnvironment",
        "SimpleGameEnvironment",
        "StepResult",
        "TextArenaEnvironment",
        "Trajectory",
        "check_env",
        "environment_factory",
        "expert_player",
        "make_environment",
        "play_episode",
        "play_episode_async",
        "random_player",
    ),
    "turnwise.tools": (
        "ActionParser",
        "FunctionTool",
        "JSONActionParser",
        "ParseResult",
        "Tool",
        "ToolCall",
        "ToolDefinition",
        "ToolRegistry",
        "tool",
    ),
    "turnwise.reward": (
        "LLMJudge",
        "Reward",
        "RewardFailure",
        "RewardFn",
        "RewardManager",
        "RewardOutcome",
        "RewardWeights",
        "WeightedReward",
        "compute_reward",
        "compute_reward_async",
        "openai_complete",
        "score_trajectories",
        "score_trajectories_async",
    ),
    "turnwise.algo": (
        "KLController",
        "apply_kl_penalty",
        "compute_advantages",
        "compute_gae_advantage_return",
        "compute_grpo_advantage",
        "compute_kl_penalty",
        "compute_policy_loss",
        "compute_ppo_loss",
        "compute_value_loss",
        "estimate_advantages",
    ),
}
_MODULES = ("algo", "config", "env", "errors", "reward", "tools", "types")
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = ["__version__", *_MODULES, *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"turnwise.{name}")
    else:
        from turnwise.errors import did_you_mean

        hint = did_you_mean(name, [*_MODULES, *_HOME])
        raise AttributeError(
            f"turnwise has no {name!r}." + (f" {hint}" if hint.startswith("Did") else "")
        )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from turnwise import algo as algo
    from turnwise import config as config
    from turnwise import env as env
    from turnwise import errors as errors
    from turnwise import reward as reward
    from turnwise import tools as tools
    from turnwise import types as types
    from turnwise.algo import (
        KLController as KLController,
    )
    from turnwise.algo import (
        apply_kl_penalty as apply_kl_penalty,
    )
    from turnwise.algo import (
        compute_advantages as compute_advantages,
    )
    from turnwise.algo import (
        compute_gae_advantage_return as compute_gae_advantage_return,
    )
    from turnwise.algo import (
        compute_grpo_advantage as compute_grpo_advantage,
    )
    from turnwise.algo import (
        compute_kl_penalty as compute_kl_penalty,
    )
    from turnwise.algo import (
        compute_policy_loss as compute_policy_loss,
    )
    from turnwise.algo import (
        compute_ppo_loss as compute_ppo_loss,
    )
    from turnwise.algo import (
        compute_value_loss as compute_value_loss,
    )
    from turnwise.algo import (
        estimate_advantages as estimate_advantages,
    )
    from turnwise.config import (
        CheckpointConfig as CheckpointConfig,
    )
    from turnwise.config import (
        ConfigStore as ConfigStore,
    )
    from turnwise.config import (
        EnvironmentConfig as EnvironmentConfig,
    )
    from turnwise.config import (
        InferenceConfig as InferenceConfig,
    )
    from turnwise.config import (
        LoggingConfig as LoggingConfig,
    )
    from turnwise.config import (
        ModelConfig as ModelConfig,
    )
    from turnwise.config import (
        RayConfig as RayConfig,
    )
    from turnwise.config import (
        TrainingConfig as TrainingConfig,
    )
    from turnwise.env import (
        AlphabetSortEnvironment as AlphabetSortEnvironment,
    )
    from turnwise.env import (
        BaseEnvironment as BaseEnvironment,
    )
    from turnwise.env import (
        CheckReport as CheckReport,
    )
    from turnwise.env import (
        CustomGameEnvironment as CustomGameEnvironment,
    )
    from turnwise.env import (
        EpisodeStatus as EpisodeStatus,
    )
    from turnwise.env import (
        Finding as Finding,
    )
    from turnwise.env import (
        GridWorldEnvironment as GridWorldEnvironment,
    )
    from turnwise.env import (
        GuessNumberEnvironment as GuessNumberEnvironment,
    )
    from turnwise.env import (
        GymnasiumEnvironment as GymnasiumEnvironment,
    )
    from turnwise.env import (
        ReasoningGymEnvironment as ReasoningGymEnvironment,
    )
    from turnwise.env import (
        RolloutData as RolloutData,
    )
    from turnwise.env import (
        ShopEnvironment as ShopEnvironment,
    )
    from turnwise.env import (
        SimpleGameEnvironment as SimpleGameEnvironment,
    )
    from turnwise.env import (
        StepResult as StepResult,
    )
    from turnwise.env import (
        TextArenaEnvironment as TextArenaEnvironment,
    )
    from turnwise.env import (
        Trajectory as Trajectory,
    )
    from turnwise.env import (
        check_env as check_env,
    )
    from turnwise.env import (
        environment_factory as environment_factory,
    )
    from turnwise.env import (
        expert_player as expert_player,
    )
    from turnwise.env import (
        make_environment as make_environment,
    )
    from turnwise.env import (
        play_episode as play_episode,
    )
    from turnwise.env import (
        play_episode_async as play_episode_async,
    )
    from turnwise.env import (
        random_player as random_player,
    )
    from turnwise.errors import (
        ConfigError as ConfigError,
    )
    from turnwise.errors import (
        DeadlineExceeded as DeadlineExceeded,
    )
    from turnwise.errors import (
        EnvironmentFault as EnvironmentFault,
    )
    from turnwise.errors import (
        MissingExtraError as MissingExtraError,
    )
    from turnwise.errors import (
        RewardError as RewardError,
    )
    from turnwise.errors import (
        ToolError as ToolError,
    )
    from turnwise.errors import (
        TurnwiseError as TurnwiseError,
    )
    from turnwise.reward import (
        LLMJudge as LLMJudge,
    )
    from turnwise.reward import (
        Reward as Reward,
    )
    from turnwise.reward import (
        RewardFailure as RewardFailure,
    )
    from turnwise.reward import (
        RewardFn as RewardFn,
    )
    from turnwise.reward import (
        RewardManager as RewardManager,
    )
    from turnwise.reward import (
        RewardOutcome as RewardOutcome,
    )
    from turnwise.reward import (
        RewardWeights as RewardWeights,
    )
    from turnwise.reward import (
        WeightedReward as WeightedReward,
    )
    from turnwise.reward import (
        compute_reward as compute_reward,
    )
    from turnwise.reward import (
        compute_reward_async as compute_reward_async,
    )
    from turnwise.reward import (
        openai_complete as openai_complete,
    )
    from turnwise.reward import (
        score_trajectories as score_trajectories,
    )
    from turnwise.reward import (
        score_trajectories_async as score_trajectories_async,
    )
    from turnwise.tools import (
        ActionParser as ActionParser,
    )
    from turnwise.tools import (
        FunctionTool as FunctionTool,
    )
    from turnwise.tools import (
        JSONActionParser as JSONActionParser,
    )
    from turnwise.tools import (
        ParseResult as ParseResult,
    )
    from turnwise.tools import (
        Tool as Tool,
    )
    from turnwise.tools import (
        ToolCall as ToolCall,
    )
    from turnwise.tools import (
        ToolDefinition as ToolDefinition,
    )
    from turnwise.tools import (
        ToolRegistry as ToolRegistry,
    )
    from turnwise.tools import (
        tool as tool,
    )
