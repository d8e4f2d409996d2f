"""Which functions are compared with their references, on which parts of a batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import turnwise
from algo.batches import as_lists
from algo.reference import reference_of
from every_case import every_case
from turnwise import algo

AGGREGATIONS = [
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]


@dataclass(frozen=True)
class Case:
    """One way to call one function."""

    function: str
    takes: str
    """What it takes of the batch: names, or name=name_in_the_batch."""
    options: Mapping[str, Any] = field(default_factory=dict)
    variable: str | None = None
    """The argument that the gradient flows to."""

    @property
    def label(self) -> str:
        taken = [part for part in self.takes.split() if part in ("turn_ids", "bootstrap_values")]
        said = [f"{name}={value}" for name, value in self.options.items()]
        return "-".join([self.function.removeprefix("compute_"), *taken, *said])

    def arguments(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        pairs = [part.split("=") for part in self.takes.split()]
        return {pair[0]: batch[pair[-1]] for pair in pairs} | dict(self.options)

    def run(self, batch: Mapping[str, Any]) -> Any:
        home = algo if hasattr(algo, self.function) else turnwise
        return getattr(home, self.function)(**self.arguments(batch))

    def expected(self, batch: Mapping[str, Any]) -> Any:
        return reference_of(self.function)(**as_lists(self.arguments(batch)))

    def gradient(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Of the loss, with respect to the variable."""
        assert self.variable is not None
        variable = batch[self.variable].detach().clone().requires_grad_()
        result = self.run({**batch, self.variable: variable})
        loss = result[0] if isinstance(result, tuple) else result
        loss.backward()
        return variable.grad

    def slopes(self, batch: Mapping[str, Any], step: float = 1e-5) -> torch.Tensor:
        """The reference's gradient by differences; what is in a stop-gradient is held still."""
        assert self.variable is not None
        arguments = as_lists(self.arguments(batch))
        held = {"held": arguments["log_probs"]} if "log_probs" in arguments else {}

        def loss(row: int, column: int, change: float) -> float:
            moved = batch[self.variable].clone()
            moved[row, column] += change
            moved_arguments = as_lists(self.arguments({**batch, self.variable: moved}))
            result = reference_of(self.function)(**moved_arguments, **held)
            return result[0] if isinstance(result, tuple) else result

        slopes = torch.zeros_like(batch[self.variable])
        for row, column in torch.ones_like(slopes).nonzero().tolist():
            difference = loss(row, column, step) - loss(row, column, -step)
            slopes[row, column] = difference / (2 * step)
        return slopes


def each(cases: list[Case]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return every_case("case", cases, label=lambda case: case.label)


SCORES = "token_level_rewards response_mask"
GROUPED = "token_level_rewards response_mask index"
VALUED = "token_level_rewards values response_mask"
TOKEN_BASELINE = GROUPED + " old_log_probs sum_pi_squared"

ADVANTAGES = [
    *(
        Case("compute_gae_advantage_return", VALUED, {"gamma": gamma, "lam": lam, "whiten": False})
        for gamma in (1.0, 0.99, 0.3, 0.0)
        for lam in (1.0, 0.95, 0.5, 0.1, 0.09, 0.02, 0.001, 0.0)
    ),
    Case("compute_gae_advantage_return", VALUED, {"gamma": 0.99, "lam": 0.95}),
    Case("compute_gae_advantage_return", VALUED, {"gamma": 1.0, "lam": 0.05}),
    *(
        Case(
            "compute_gae_advantage_return",
            VALUED + " bootstrap_values",
            {"gamma": 0.9, "lam": lam, "whiten": whiten},
        )
        for lam in (1.0, 0.9, 0.05, 0.0)
        for whiten in (False, True)
    ),
    Case("compute_grpo_advantage", GROUPED),
    Case("compute_grpo_advantage", GROUPED, {"norm_by_std": False}),
    Case("compute_grpo_advantage", GROUPED, {"epsilon": 0.5}),
    Case("compute_dr_grpo_advantage", GROUPED),
    Case("compute_grpo_passk_advantage", GROUPED),
    Case("compute_grpo_passk_advantage", GROUPED, {"norm_by_std": False}),
    Case("compute_gdpo_advantage", GROUPED),
    Case("compute_gdpo_advantage", GROUPED + " reward_parts"),
    Case("compute_gdpo_advantage", GROUPED + " reward_parts", {"part_weights": [0.5, 2.0, 0.0]}),
    Case("compute_gdpo_advantage", GROUPED + " reward_parts", {"norm_by_std": False}),
    Case("compute_rloo_advantage", GROUPED),
    Case("compute_opo_advantage", GROUPED),
    Case("compute_gpg_advantage", GROUPED),
    Case("compute_gpg_advantage", GROUPED, {"f_norm": 2.5}),
    Case("compute_reinforce_plus_plus_advantage", SCORES),
    Case("compute_reinforce_plus_plus_advantage", SCORES, {"gamma": 0.8}),
    Case("compute_reinforce_plus_plus_baseline_advantage", GROUPED),
    Case("compute_remax_advantage", SCORES + " reward_baselines"),
    Case("compute_optimal_token_baseline_advantage", TOKEN_BASELINE),
    Case("compute_optimal_token_baseline_advantage", TOKEN_BASELINE, {"handle_zero_tail": False}),
]

TURN_ADVANTAGES = [
    case
    for turns in ("", " turn_ids")
    for case in [
        Case("compute_turn_gae_advantage_return", VALUED + turns, {"gamma": 0.9, "lam": 0.8}),
        Case(
            "compute_turn_gae_advantage_return",
            VALUED + turns,
            {"gamma": 1.0, "lam": 0.0, "whiten": False},
        ),
        Case(
            "compute_turn_gae_advantage_return",
            VALUED + " bootstrap_values" + turns,
            {"gamma": 0.95, "lam": 1.0, "whiten": False},
        ),
        Case("compute_turn_grpo_advantage", GROUPED + turns),
        Case("compute_turn_grpo_advantage", GROUPED + turns, {"gamma": 0.7}),
        Case("compute_turn_grpo_advantage", GROUPED + turns, {"gamma": 0.9, "norm_by_std": True}),
        Case("compute_gigpo_advantage", GROUPED + " anchor_states" + turns),
        Case("compute_gigpo_advantage", GROUPED + " anchor_states" + turns, {"gamma": 0.8}),
        Case("compute_gigpo_advantage", GROUPED + " anchor_states" + turns, {"step_weight": 0.3}),
        Case("compute_gigpo_advantage", GROUPED + " anchor_states" + turns, {"norm_by_std": False}),
    ]
]

POLICY = "old_log_probs log_probs advantages response_mask"
# Every token of the candidates is taken, so that nothing is left to chance.
ALL_CANDIDATES = {"clip_cov_ratio": 1.0, "clip_cov_lower": 0.05, "clip_cov_upper": 1.0}


def _loss(function: str, **options: Any) -> Case:
    return Case(function, POLICY, options, variable="log_probs")


POLICY_LOSSES = [
    _loss("compute_policy_loss"),
    _loss("compute_policy_loss", clip_ratio_low=0.1, clip_ratio_high=0.4),
    _loss("compute_policy_loss", clip_ratio_c=1.2),
    _loss("compute_policy_loss", clip_ratio=0.05),
    Case(
        "compute_ppo_loss",
        "old_log_probs new_log_probs=log_probs advantages response_mask",
        {"config": {"clip_ratio": 0.3}},
        variable="log_probs",
    ),
    _loss("compute_gspo_loss"),
    _loss("compute_gspo_loss", clip_ratio_low=0.02, clip_ratio_high=0.05),
    _loss("compute_cispo_loss"),
    _loss("compute_cispo_loss", clip_ratio_low=1.0, clip_ratio_high=0.1),
    _loss("compute_sapo_loss"),
    _loss("compute_sapo_loss", tau_pos=2.0, tau_neg=3.0),
    _loss("compute_gpg_loss"),
    _loss("compute_geo_mean_loss"),
    _loss("compute_geo_mean_loss", clip_ratio_low=0.1, clip_ratio_high=0.3),
    _loss("compute_clip_cov_loss", **ALL_CANDIDATES),
    _loss("compute_kl_cov_loss"),
    _loss("compute_kl_cov_loss", kl_cov_ratio=0.2, kl_cov_coef=0.7),
    _loss("compute_kl_cov_loss", kl_cov_ratio=1.0),
    _loss("compute_dppo_tv_loss"),
    _loss("compute_dppo_tv_loss", clip_ratio_low=0.05, clip_ratio_high=0.1, clip_ratio_c=1.1),
    _loss("compute_dppo_kl_loss"),
    _loss("compute_dppo_kl_loss", clip_ratio_low=0.01, clip_ratio_high=0.03, clip_ratio_c=1.1),
    _loss("compute_reinforce_loss"),
]


def every_mode(case: Case) -> list[Case]:
    """The same policy loss aggregated in every way, with and without importance weights."""
    return [
        Case(case.function, takes, {**case.options, "loss_agg_mode": mode}, case.variable)
        for mode in AGGREGATIONS
        for takes in (case.takes, case.takes + " importance_weights")
    ]


WITH_OPTIONS = [case for case in POLICY_LOSSES if case.takes == POLICY]
"""The losses that take every option."""
WEIGHTED_LOSSES = [every_mode(case)[-1] for case in WITH_OPTIONS]

VALUE_LOSSES = [
    Case(
        "compute_value_loss",
        "vpreds returns old_values response_mask",
        {"cliprange_value": cliprange, "loss_agg_mode": mode},
        variable="vpreds",
    )
    for cliprange in (0.2, 0.05)
    for mode in AGGREGATIONS
]
EXPLAINED = [Case("explained_variance", "values returns response_mask")]

PENALTIES = [
    Case(
        "apply_kl_penalty",
        "token_level_rewards log_probs ref_log_probs response_mask",
        {"kl_coef": 0.3, "kind": kind},
    )
    for kind in ("k1", "k2", "k3", "abs", "k3+")
]

SAMPLED = "sampler_log_probs log_probs response_mask"
CORRECTIONS = [
    Case("measure_log_prob_gap", SAMPLED),
    *(
        Case("compute_importance_weights", SAMPLED, {"level": level, "bounds": bounds})
        for level in ("token", "sequence")
        for bounds in (2.0, 1.1, (0.7, 1.4))
    ),
]

SUMS = [
    Case("masked_mean", "x=values mask=response_mask", variable="values"),
    *(
        Case("discounted_suffix_sum", "x=values mask=response_mask", {"decay": decay})
        for decay in (1.0, 0.99, 0.5, 0.02, 0.001, 0.0)
    ),
    *(
        Case("aggregate_loss", "token_losses mask=response_mask", {"mode": mode}, "token_losses")
        for mode in AGGREGATIONS
    ),
]

ALL = [
    *ADVANTAGES,
    *TURN_ADVANTAGES,
    *POLICY_LOSSES,
    *WEIGHTED_LOSSES,
    *VALUE_LOSSES,
    *EXPLAINED,
    *PENALTIES,
    *CORRECTIONS,
    *SUMS,
]
"""Everything that takes a mask."""
