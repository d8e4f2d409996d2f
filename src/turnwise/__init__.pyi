"""The names of `turnwise`, for type checkers and for `__init__.py`, which reads them here.

`__all__` is what most users need, by what they do; it is the first page of the reference. The
others are public in their own modules and documented there.
"""

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
    AdvantageEstimator as AdvantageEstimator,
    KLController as KLController,
    PolicyLoss as PolicyLoss,
    apply_kl_penalty as apply_kl_penalty,
    compute_gae_advantage_return as compute_gae_advantage_return,
    compute_grpo_advantage as compute_grpo_advantage,
    compute_policy_loss as compute_policy_loss,
    compute_value_loss as compute_value_loss,
)
from turnwise.chat import ChatFormat as ChatFormat, Conversation as Conversation
from turnwise.compat.algorithms import (
    compute_kl_penalty as compute_kl_penalty,
    compute_ppo_loss as compute_ppo_loss,
    estimate_advantages as estimate_advantages,
)
from turnwise.compat.multi_turn import (
    MultiTurnChatHarness as MultiTurnChatHarness,
    MultiTurnInferenceEngine as MultiTurnInferenceEngine,
    MultiTurnManager as MultiTurnManager,
)
from turnwise.compat.ppo import (
    DataParallelPPOActor as DataParallelPPOActor,
    PPOTrainer as PPOTrainer,
)
from turnwise.compat.rewards import (
    RewardManager as RewardManager,
    RewardWeights as RewardWeights,
)
from turnwise.compat.rollouts import (
    BatchInferenceManager as BatchInferenceManager,
    InferenceEngine as InferenceEngine,
    VLLMRolloutSPMD as VLLMRolloutSPMD,
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
    BaseEnvironment as BaseEnvironment,
    CustomGameEnvironment as CustomGameEnvironment,
    EnvironmentStepTool as EnvironmentStepTool,
    EpisodeStatus as EpisodeStatus,
    GridWorldEnvironment as GridWorldEnvironment,
    GuessNumberEnvironment as GuessNumberEnvironment,
    GymnasiumEnvironment as GymnasiumEnvironment,
    PromptEnvironment as PromptEnvironment,
    ReasoningGymEnvironment as ReasoningGymEnvironment,
    RolloutData as RolloutData,
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
    Episode as Episode,
    EpisodeCollector as EpisodeCollector,
    EpisodeFailed as EpisodeFailed,
    EpisodeLimits as EpisodeLimits,
    EpisodeResult as EpisodeResult,
    EpisodeSummary as EpisodeSummary,
    collect as collect,
    run_episode as run_episode,
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
    LocalEngine as LocalEngine,
    SamplingParams as SamplingParams,
    ScriptedEngine as ScriptedEngine,
    SGLangInferenceEngine as SGLangInferenceEngine,
    VLLMInferenceEngine as VLLMInferenceEngine,
    create_inference_engine as create_inference_engine,
)
from turnwise.learner import (
    PolicyValueModel as PolicyValueModel,
    PPOBatch as PPOBatch,
)
from turnwise.models import load_model as load_model
from turnwise.reward import (
    LLMJudge as LLMJudge,
    Reward as Reward,
    RewardBatch as RewardBatch,
    WeightedReward as WeightedReward,
    compute_reward as compute_reward,
    compute_reward_async as compute_reward_async,
    score_trajectories as score_trajectories,
)
from turnwise.scale.create import create_trainer as create_trainer
from turnwise.scale.verl import (
    CustomEnvironmentDataset as CustomEnvironmentDataset,
    CustomRayPPOTrainer as CustomRayPPOTrainer,
    EnvironmentRewardWrapper as EnvironmentRewardWrapper,
)
from turnwise.tools import (
    ActionParser as ActionParser,
    CalculatorTool as CalculatorTool,
    CodeLimits as CodeLimits,
    MCPTools as MCPTools,
    PythonCodeTool as PythonCodeTool,
    Tool as Tool,
    ToolCall as ToolCall,
    ToolContext as ToolContext,
    ToolDefinition as ToolDefinition,
    ToolRegistry as ToolRegistry,
    tool as tool,
)
from turnwise.tools.parsers import (
    FunctionCallingParser as FunctionCallingParser,
    JSONActionParser as JSONActionParser,
    ParseResult as ParseResult,
    ReActActionParser as ReActActionParser,
)
from turnwise.trainer import (
    Curriculum as Curriculum,
    Levels as Levels,
    RayPPOTrainer as RayPPOTrainer,
    Reporter as Reporter,
    Trainer as Trainer,
    load_trained_model as load_trained_model,
)

__version__: str
__all__ = [  # noqa: RUF022 - by what they do
    # Write an environment
    "EnvironmentConfig",
    "BaseEnvironment",
    "Trajectory",
    "check_env",
    "expert_player",
    "make_environment",
    "play_episode",
    "random_player",
    # Give it tools
    "ToolError",
    "ActionParser",
    "MCPTools",
    "PythonCodeTool",
    "Tool",
    "ToolContext",
    "ToolRegistry",
    "tool",
    # Score its episodes
    "LLMJudge",
    "RewardManager",
    "RewardWeights",
    "WeightedReward",
    "compute_reward",
    # Train
    "AdvantageEstimator",
    "PolicyLoss",
    "ConfigStore",
    "PromptDataset",
    "EpisodeLimits",
    "create_trainer",
    "Curriculum",
    "Levels",
    "Reporter",
    "Trainer",
    # Evaluate and use a model
    "EpisodeStatus",
    "EpisodeCollector",
    "EpisodeResult",
    "run_episode",
    "SamplingParams",
    "create_inference_engine",
    "load_model",
    "load_trained_model",
    # Run it as an agent
    "MultiTurnChatHarness",
    "MultiTurnInferenceEngine",
    "MultiTurnManager",
    # Handle errors
    "ConfigError",
    "MissingExtraError",
    "TrainingStopped",
    "TurnwiseError",
]
