"""Algorithms: pure functions on tensors. Advantages, policy and value losses, KL, correction.

Shapes are [B, T]: a batch of B episodes, T tokens each, of which `response_mask` marks those that
the policy sampled. What takes a mask never lets a masked token change a result. Estimators return
advantages and returns, [B, T] each, and `index` [B] is the group of each episode.
"""

from turnwise.algo.advantages.gae import compute_gae_advantage_return
from turnwise.algo.advantages.outcome import (
    compute_dr_grpo_advantage,
    compute_gdpo_advantage,
    compute_gpg_advantage,
    compute_grpo_advantage,
    compute_grpo_passk_advantage,
    compute_opo_advantage,
    compute_optimal_token_baseline_advantage,
    compute_reinforce_plus_plus_advantage,
    compute_reinforce_plus_plus_baseline_advantage,
    compute_remax_advantage,
    compute_rloo_advantage,
)
from turnwise.algo.advantages.turns import (
    compute_gigpo_advantage,
    compute_turn_gae_advantage_return,
    compute_turn_grpo_advantage,
)
from turnwise.algo.choose import (
    ADVANTAGE_ESTIMATORS,
    POLICY_LOSSES,
    AdvantageEstimator,
    Algorithm,
    PolicyLoss,
    TokenSelection,
    compute_advantages,
    get_advantage_estimator,
    get_policy_loss,
)
from turnwise.algo.correction import compute_importance_weights, measure_log_prob_gap
from turnwise.algo.kl import KLController, apply_kl_penalty, estimate_kl
from turnwise.algo.losses.covariance import compute_clip_cov_loss, compute_kl_cov_loss
from turnwise.algo.losses.policy import (
    compute_cispo_loss,
    compute_dppo_kl_loss,
    compute_dppo_tv_loss,
    compute_geo_mean_loss,
    compute_gpg_loss,
    compute_gspo_loss,
    compute_policy_loss,
    compute_reinforce_loss,
    compute_sapo_loss,
)
from turnwise.algo.losses.value import compute_value_loss, explained_variance
from turnwise.algo.masked import BatchTotals, aggregate_loss, discounted_suffix_sum, masked_mean

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "POLICY_LOSSES",
    "AdvantageEstimator",
    "Algorithm",
    "BatchTotals",
    "KLController",
    "PolicyLoss",
    "TokenSelection",
    "aggregate_loss",
    "apply_kl_penalty",
    "compute_advantages",
    "compute_cispo_loss",
    "compute_clip_cov_loss",
    "compute_dppo_kl_loss",
    "compute_dppo_tv_loss",
    "compute_dr_grpo_advantage",
    "compute_gae_advantage_return",
    "compute_gdpo_advantage",
    "compute_geo_mean_loss",
    "compute_gigpo_advantage",
    "compute_gpg_advantage",
    "compute_gpg_loss",
    "compute_grpo_advantage",
    "compute_grpo_passk_advantage",
    "compute_gspo_loss",
    "compute_importance_weights",
    "compute_kl_cov_loss",
    "compute_opo_advantage",
    "compute_optimal_token_baseline_advantage",
    "compute_policy_loss",
    "compute_reinforce_loss",
    "compute_reinforce_plus_plus_advantage",
    "compute_reinforce_plus_plus_baseline_advantage",
    "compute_remax_advantage",
    "compute_rloo_advantage",
    "compute_sapo_loss",
    "compute_turn_gae_advantage_return",
    "compute_turn_grpo_advantage",
    "compute_value_loss",
    "discounted_suffix_sum",
    "estimate_kl",
    "explained_variance",
    "get_advantage_estimator",
    "get_policy_loss",
    "masked_mean",
    "measure_log_prob_gap",
]
