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
        "CheckpointError",
        "ConfigError",
        "DeadlineExceeded",
        "EngineError",
        "EnvironmentFault",
        "MissingExtraError",
        "RewardError",
        "ToolError",
        "TrainingStopped",
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
        "PromptEnvironment",
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
        "PARSERS",
        "ActionParser",
        "CalculatorTool",
        "CodeLimits",
        "DeepSeekParser",
        "DeepSeekV31Parser",
        "EnvironmentStepTool",
        "FunctionCallingParser",
        "FunctionTool",
        "GLMParser",
        "HermesParser",
        "JSONActionParser",
        "LlamaParser",
        "MCPTools",
        "MistralArgsParser",
        "MistralParser",
        "ParseOutcome",
        "ParseResult",
        "PythonCodeTool",
        "QwenCoderParser",
        "ReActActionParser",
        "Tool",
        "ToolCall",
        "ToolContext",
        "ToolDefinition",
        "ToolFailure",
        "ToolRegistry",
        "ToolResult",
        "get_parser",
        "parser_for",
        "tool",
    ),
    "turnwise.reward": (
        "LLMJudge",
        "Reward",
        "RewardBatch",
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
    "turnwise.chat": (
        "ChatFormat",
        "Conversation",
        "TokenStream",
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
    "turnwise.models": (
        "LoadedModel",
        "load_model",
    ),
    "turnwise.inference": (
        "BaseInferenceEngine",
        "BatchError",
        "BatchInferenceManager",
        "FinishReason",
        "GenerationOutput",
        "GenerationRequest",
        "GenerationResult",
        "InferenceEngine",
        "LocalEngine",
        "SGLangInferenceEngine",
        "SamplingParams",
        "ScriptedEngine",
        "VLLMInferenceEngine",
        "VLLMRolloutSPMD",
        "create_inference_engine",
    ),
    "turnwise.episode": (
        "AgentRecord",
        "Collection",
        "Episode",
        "EpisodeCollector",
        "EpisodeFailed",
        "EpisodeLimits",
        "EpisodeResult",
        "EpisodeSummary",
        "MultiTurnChatHarness",
        "MultiTurnInferenceEngine",
        "MultiTurnManager",
        "TurnRecord",
        "collect",
        "collect_async",
        "run_episode",
        "run_episode_async",
    ),
    "turnwise.data": (
        "CustomEnvDataset",
        "PromptDataset",
        "RLHFDataset",
        "collate_fn",
    ),
    "turnwise.learner": (
        "DataParallelPPOActor",
        "Learner",
        "LearnerOptions",
        "PPOBatch",
        "PPOTrainer",
        "PolicyValueModel",
        "make_learner",
    ),
    "turnwise.trainer": (
        "Curriculum",
        "Levels",
        "RayPPOTrainer",
        "Reporter",
        "Trainer",
        "load_trained_model",
    ),
    "turnwise.scale.create": ("create_trainer",),
    "turnwise.scale.verl": (
        "CustomEnvironmentDataset",
        "CustomRayPPOTrainer",
        "EnvironmentRewardWrapper",
    ),
}
_MODULES = (
    "algo",
    "chat",
    "config",
    "data",
    "env",
    "episode",
    "errors",
    "inference",
    "learner",
    "models",
    "reward",
    "runs",
    "tools",
    "trainer",
    "types",
)
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
    from turnwise import (
        algo as algo,
        chat as chat,
        config as config,
        data as data,
        env as env,
        episode as episode,
        errors as errors,
        inference as inference,
        learner as learner,
        models as models,
        reward as reward,
        runs as runs,
        tools as tools,
        trainer as trainer,
        types as types,
    )
    from turnwise.algo import (
        KLController as KLController,
        apply_kl_penalty as apply_kl_penalty,
        compute_advantages as compute_advantages,
        compute_gae_advantage_return as compute_gae_advantage_return,
        compute_grpo_advantage as compute_grpo_advantage,
        compute_kl_penalty as compute_kl_penalty,
        compute_policy_loss as compute_policy_loss,
        compute_ppo_loss as compute_ppo_loss,
        compute_value_loss as compute_value_loss,
        estimate_advantages as estimate_advantages,
    )
    from turnwise.chat import (
        ChatFormat as ChatFormat,
        Conversation as Conversation,
        TokenStream as TokenStream,
    )
    from turnwise.config import (
        CheckpointConfig as CheckpointConfig,
        ConfigStore as ConfigStore,
        EnvironmentConfig as EnvironmentConfig,
        InferenceConfig as InferenceConfig,
        LoggingConfig as LoggingConfig,
        ModelConfig as ModelConfig,
        RayConfig as RayConfig,
        TrainingConfig as TrainingConfig,
    )
    from turnwise.data import (
        CustomEnvDataset as CustomEnvDataset,
        PromptDataset as PromptDataset,
        RLHFDataset as RLHFDataset,
        collate_fn as collate_fn,
    )
    from turnwise.env import (
        AlphabetSortEnvironment as AlphabetSortEnvironment,
        BaseEnvironment as BaseEnvironment,
        CheckReport as CheckReport,
        CustomGameEnvironment as CustomGameEnvironment,
        EpisodeStatus as EpisodeStatus,
        Finding as Finding,
        GridWorldEnvironment as GridWorldEnvironment,
        GuessNumberEnvironment as GuessNumberEnvironment,
        GymnasiumEnvironment as GymnasiumEnvironment,
        PromptEnvironment as PromptEnvironment,
        ReasoningGymEnvironment as ReasoningGymEnvironment,
        RolloutData as RolloutData,
        ShopEnvironment as ShopEnvironment,
        SimpleGameEnvironment as SimpleGameEnvironment,
        StepResult as StepResult,
        TextArenaEnvironment as TextArenaEnvironment,
        Trajectory as Trajectory,
        check_env as check_env,
        environment_factory as environment_factory,
        expert_player as expert_player,
        make_environment as make_environment,
        play_episode as play_episode,
        play_episode_async as play_episode_async,
        random_player as random_player,
    )
    from turnwise.episode import (
        AgentRecord as AgentRecord,
        Collection as Collection,
        Episode as Episode,
        EpisodeCollector as EpisodeCollector,
        EpisodeFailed as EpisodeFailed,
        EpisodeLimits as EpisodeLimits,
        EpisodeResult as EpisodeResult,
        EpisodeSummary as EpisodeSummary,
        MultiTurnChatHarness as MultiTurnChatHarness,
        MultiTurnInferenceEngine as MultiTurnInferenceEngine,
        MultiTurnManager as MultiTurnManager,
        TurnRecord as TurnRecord,
        collect as collect,
        collect_async as collect_async,
        run_episode as run_episode,
        run_episode_async as run_episode_async,
    )
    from turnwise.errors import (
        CheckpointError as CheckpointError,
        ConfigError as ConfigError,
        DeadlineExceeded as DeadlineExceeded,
        EngineError as EngineError,
        EnvironmentFault as EnvironmentFault,
        MissingExtraError as MissingExtraError,
        RewardError as RewardError,
        ToolError as ToolError,
        TrainingStopped as TrainingStopped,
        TurnwiseError as TurnwiseError,
    )
    from turnwise.inference import (
        BaseInferenceEngine as BaseInferenceEngine,
        BatchError as BatchError,
        BatchInferenceManager as BatchInferenceManager,
        FinishReason as FinishReason,
        GenerationOutput as GenerationOutput,
        GenerationRequest as GenerationRequest,
        GenerationResult as GenerationResult,
        InferenceEngine as InferenceEngine,
        LocalEngine as LocalEngine,
        SamplingParams as SamplingParams,
        ScriptedEngine as ScriptedEngine,
        SGLangInferenceEngine as SGLangInferenceEngine,
        VLLMInferenceEngine as VLLMInferenceEngine,
        VLLMRolloutSPMD as VLLMRolloutSPMD,
        create_inference_engine as create_inference_engine,
    )
    from turnwise.learner import (
        DataParallelPPOActor as DataParallelPPOActor,
        Learner as Learner,
        LearnerOptions as LearnerOptions,
        PolicyValueModel as PolicyValueModel,
        PPOBatch as PPOBatch,
        PPOTrainer as PPOTrainer,
        make_learner as make_learner,
    )
    from turnwise.models import (
        LoadedModel as LoadedModel,
        load_model as load_model,
    )
    from turnwise.reward import (
        LLMJudge as LLMJudge,
        Reward as Reward,
        RewardBatch as RewardBatch,
        RewardFailure as RewardFailure,
        RewardFn as RewardFn,
        RewardManager as RewardManager,
        RewardOutcome as RewardOutcome,
        RewardWeights as RewardWeights,
        WeightedReward as WeightedReward,
        compute_reward as compute_reward,
        compute_reward_async as compute_reward_async,
        openai_complete as openai_complete,
        score_trajectories as score_trajectories,
        score_trajectories_async as score_trajectories_async,
    )
    from turnwise.scale.create import create_trainer as create_trainer
    from turnwise.scale.verl import (
        CustomEnvironmentDataset as CustomEnvironmentDataset,
        CustomRayPPOTrainer as CustomRayPPOTrainer,
        EnvironmentRewardWrapper as EnvironmentRewardWrapper,
    )
    from turnwise.tools import (
        PARSERS as PARSERS,
        ActionParser as ActionParser,
        CalculatorTool as CalculatorTool,
        CodeLimits as CodeLimits,
        DeepSeekParser as DeepSeekParser,
        DeepSeekV31Parser as DeepSeekV31Parser,
        EnvironmentStepTool as EnvironmentStepTool,
        FunctionCallingParser as FunctionCallingParser,
        FunctionTool as FunctionTool,
        GLMParser as GLMParser,
        HermesParser as HermesParser,
        JSONActionParser as JSONActionParser,
        LlamaParser as LlamaParser,
        MCPTools as MCPTools,
        MistralArgsParser as MistralArgsParser,
        MistralParser as MistralParser,
        ParseOutcome as ParseOutcome,
        ParseResult as ParseResult,
        PythonCodeTool as PythonCodeTool,
        QwenCoderParser as QwenCoderParser,
        ReActActionParser as ReActActionParser,
        Tool as Tool,
        ToolCall as ToolCall,
        ToolContext as ToolContext,
        ToolDefinition as ToolDefinition,
        ToolFailure as ToolFailure,
        ToolRegistry as ToolRegistry,
        ToolResult as ToolResult,
        get_parser as get_parser,
        parser_for as parser_for,
        tool as tool,
    )
    from turnwise.trainer import (
        Curriculum as Curriculum,
        Levels as Levels,
        RayPPOTrainer as RayPPOTrainer,
        Reporter as Reporter,
        Trainer as Trainer,
        load_trained_model as load_trained_model,
    )
