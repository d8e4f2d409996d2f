"""Checks of asynchronous runs: samples that are too old, and what the learner waits for."""

from __future__ import annotations

from turnwise.runs.doctor.history import NUM_RECENT, NUM_STEADY, History


def policy_lag(history: History) -> str | None:
    """Detect samples of weights from which the policy has moved too far away."""
    behind = history.known("weights_behind", NUM_RECENT)
    if len(behind) < NUM_RECENT or history.num_steps < NUM_STEADY:
        return None
    effective, divergence = history.median("is_ess"), history.median("gap_kl") or 0.0
    if (effective is None or effective >= 0.7) and divergence < 0.2:
        return None
    if history.is_rising() or history.is_solved():
        return None
    weighted = "" if effective is None else f", and weighted they count as {effective:.0%} of them"
    return (
        f"The tokens of a step are up to {max(behind):.0f} updates old, and the policy has moved "
        f"away from the weights that sampled them: divergence {divergence:.2g}{weighted}."
    )


def slow_episodes(history: History) -> str | None:
    """Detect a learner and an engine that both wait for environments, tools or rewards."""
    learner = history.median("idle/learner", NUM_STEADY)
    engine = history.median("idle/engine", NUM_STEADY)
    if learner is None or engine is None or min(learner, engine) < 0.6:
        return None
    slots = history.median("idle/episodes", NUM_STEADY) or 0.0
    empty = f" {slots:.0%} of the slots for episodes were empty: no more may start." * (slots > 0.3)
    return (
        f"For {NUM_STEADY} steps the learner waited for episodes {learner:.0%} of the time, and "
        f"the engine had nothing to sample {engine:.0%} of it: environments, tools or rewards are "
        f"slow.{empty}"
    )
