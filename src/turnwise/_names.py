"""Which names `turnwise` has, and the modules that they come from.

`FACE` is what most users need, by what they do; it is `turnwise.__all__` and the first page of the
reference. `OTHERS` are public in their own modules and documented there; they can be imported from
`turnwise` as well. `__init__.pyi` lists the same names for type checkers; a test compares.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

FACE: dict[str, dict[str, str]] = {
    "Write an environment": {
        "turnwise.config": "EnvironmentConfig",
        "turnwise.env": (
            "BaseEnvironment Trajectory check_env expert_player make_environment play_episode "
            "random_player"
        ),
    },
    "Give it tools": {
        "turnwise.errors": "ToolError",
        "turnwise.tools": "ActionParser MCPTools PythonCodeTool Tool ToolContext ToolRegistry tool",
    },
    "Score its episodes": {
        "turnwise.reward": "LLMJudge RewardManager RewardWeights WeightedReward compute_reward",
    },
    "Train": {
        "turnwise.algo": "AdvantageEstimator PolicyLoss",
        "turnwise.config": "ConfigStore",
        "turnwise.data": "PromptDataset",
        "turnwise.episode": "EpisodeLimits",
        "turnwise.scale.create": "create_trainer",
        "turnwise.trainer": "Curriculum Levels Reporter Trainer",
    },
    "Evaluate and use a model": {
        "turnwise.env": "EpisodeStatus",
        "turnwise.episode": "EpisodeCollector EpisodeResult run_episode",
        "turnwise.inference": "SamplingParams create_inference_engine",
        "turnwise.models": "load_model",
        "turnwise.trainer": "load_trained_model",
    },
    "Run it as an agent": {
        "turnwise.episode": "MultiTurnChatHarness MultiTurnInferenceEngine MultiTurnManager",
    },
    "Handle errors": {
        "turnwise.errors": "ConfigError MissingExtraError TrainingStopped TurnwiseError",
    },
}

OTHERS: dict[str, str] = {
    "turnwise.algo": (
        "KLController apply_kl_penalty compute_gae_advantage_return compute_grpo_advantage "
        "compute_kl_penalty compute_policy_loss compute_ppo_loss compute_value_loss "
        "estimate_advantages"
    ),
    "turnwise.chat": "ChatFormat Conversation",
    "turnwise.config": (
        "CheckpointConfig InferenceConfig LoggingConfig ModelConfig RayConfig TrainingConfig"
    ),
    "turnwise.data": "CustomEnvDataset RLHFDataset collate_fn",
    "turnwise.env": (
        "CustomGameEnvironment GridWorldEnvironment "
        "GuessNumberEnvironment GymnasiumEnvironment PromptEnvironment ReasoningGymEnvironment "
        "RolloutData SimpleGameEnvironment StepResult TextArenaEnvironment "
        "environment_factory play_episode_async"
    ),
    "turnwise.episode": "Episode EpisodeFailed EpisodeSummary collect",
    "turnwise.errors": "CheckpointError DeadlineExceeded EngineError EnvironmentFault RewardError",
    "turnwise.inference": (
        "BaseInferenceEngine BatchError BatchInferenceManager InferenceEngine LocalEngine "
        "SGLangInferenceEngine ScriptedEngine VLLMInferenceEngine VLLMRolloutSPMD"
    ),
    "turnwise.learner": "DataParallelPPOActor PPOBatch PPOTrainer PolicyValueModel",
    "turnwise.reward": "Reward RewardBatch compute_reward_async score_trajectories",
    "turnwise.scale.verl": "CustomEnvironmentDataset CustomRayPPOTrainer EnvironmentRewardWrapper",
    "turnwise.tools": "CalculatorTool CodeLimits EnvironmentStepTool ToolCall ToolDefinition",
    "turnwise.tools.parsers": (
        "FunctionCallingParser JSONActionParser ParseResult ReActActionParser"
    ),
    "turnwise.trainer": "RayPPOTrainer",
}

MODULES = (
    "algo", "chat", "config", "data", "env", "episode", "errors", "inference", "learner",
    "models", "reward", "runs", "tools", "trainer", "types",
)  # fmt: skip
"""Modules that `turnwise.algo` and the like import when they are first used."""

FACE_NAMES = [name for group in FACE.values() for names in group.values() for name in names.split()]
HOME = {
    name: module
    for table in (*FACE.values(), OTHERS)
    for module, names in table.items()
    for name in names.split()
}
"""The module of each name."""


def find(name: str) -> Any:
    """Import what `turnwise.<name>` is; an unknown name is an error that says the nearest one."""
    import importlib

    if name in HOME:
        return getattr(importlib.import_module(HOME[name]), name)
    if name in MODULES:
        return importlib.import_module(f"turnwise.{name}")
    from turnwise.errors import did_you_mean

    hint = did_you_mean(name, [*MODULES, *HOME])
    raise AttributeError(
        f"turnwise has no {name!r}." + (f" {hint}" if hint.startswith("Did") else "")
    )
