"""A gap between the sampler's log-probs and the learner's that is not small ends a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from turnwise.errors import TrainingStopped
from turnwise.inference import SamplingParams

# Float32 on the same weights stays under 1e-4; what computes another model is far above this.
_LARGEST_IN_FLOAT32 = 0.01
# Of bfloat16 and of quantised engines the mean is a few hundredths; of another model it is some
# nats.
_MEAN_OTHERWISE = 0.5


@dataclass(frozen=True)
class GapLimit:
    """How far the sampler's log-probs and the learner's may be apart, in nats."""

    metric: Literal["gap_max", "gap_mean"]
    limit: float

    @classmethod
    def of(cls, setting: float | Literal["auto"] | None, is_exact: bool) -> GapLimit | None:
        """What `training.max_log_prob_gap` says; None: anything goes.

        `is_exact` says whether sampler and learner compute in float32 on the same weights.
        """
        if setting is None:
            return None
        if is_exact:
            return cls("gap_max", _LARGEST_IN_FLOAT32 if setting == "auto" else setting)
        return cls("gap_mean", _MEAN_OTHERWISE if setting == "auto" else setting)

    def check(self, figures: Mapping[str, float], sampling: SamplingParams) -> None:
        """Raise where the figures of an update are beyond the limit.

        Not where a gap is to be expected: older weights have played, or the sampler left tokens
        out, which makes the others likelier.
        """
        is_filtered = sampling.top_p < 1.0 or sampling.top_k > 0 or sampling.min_p > 0.0
        gap = figures.get(self.metric, 0.0)
        if is_filtered or "weights_behind" in figures or not gap > self.limit:
            return
        what = "differ by up to" if self.metric == "gap_max" else "differ on average by"
        raise TrainingStopped(
            f"the learner's log-probs {what} {gap:.3g} nats from the sampler's ({self.metric}), "
            f"expected at most {self.limit:g} (training.max_log_prob_gap): the episodes come from "
            "another model than the one that is trained. Likely causes: weights that did not reach "
            "the engine, an attention that engine and learner compute differently (sliding window, "
            "softcap, sinks), a quantised engine, a server with another model or temperature. To "
            "find out, train with inference.backend=transformers: if the gap is gone, it is the "
            "engine. A larger training.max_log_prob_gap allows more, null disables this check."
        )
