"""Checks of the engine and of the policy updates."""

from __future__ import annotations

import statistics

from turnwise.runs.doctor.history import NUM_STEADY, History, Jump

LARGE_NORM = 10.0
"""A smaller norm of the gradient is never a finding."""
FIXED = 0.005
"""Entropy in nats per token below which a policy is nearly deterministic."""


def learning_rate_too_high(history: History) -> str | None:
    """Detect updates that destroy the policy: exploding gradients, or entropy jumps."""
    if history.num_steps < 3 or history.is_solved(3) or history.is_rising():
        return None
    jumps = [_exploding_gradient(history), history.first_jump if history.has_fallen() else None]
    seen = [
        f"the {jump.name} went from {_number(jump.before)} to {_number(jump.after)} "
        f"(step {jump.step})"
        for jump in jumps
        if jump is not None
    ]
    if not seen:
        return None
    rate = history.steps[-1].get("learning_rate")
    at = "" if rate is None else f" at a learning rate of {rate:.3g}"
    lost = ""
    if history.has_fallen():
        now = history.mean("reward", 3) or 0.0
        lost = f", and the reward fell from {history.first['reward']:.3g} to {now:.3g}"
    words = " and ".join(seen)
    return f"{words[0].upper()}{words[1:]}{at}{lost}: single updates rewrite the policy."


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _exploding_gradient(history: History) -> Jump | None:
    peak = history.gradient_peak
    if peak is None or peak.after < max(50 * peak.before, LARGE_NORM):
        return None
    norms = [step["grad_norm"] for step in history.steps if "grad_norm" in step]
    if sum(norm >= 10 * peak.before for norm in norms) < 2:
        return None  # once may be noise
    rewards = [abs(step.get(name, 0.0)) for step in history.steps for name in _EXTREMES]
    if max(rewards) >= 10 * max(*(abs(history.first.get(name, 0.0)) for name in _EXTREMES), 1.0):
        return None  # a reward of another size explains it
    return peak


_EXTREMES = ("reward_min", "reward_max")


def entropy_collapse(history: History) -> str | None:
    start, now = history.start("entropy"), history.mean("entropy")
    if start is None or now is None or history.num_steps < NUM_STEADY:
        return None
    is_rising = history.is_rising() and not history.has_no_spread()  # else it only rose earlier
    if history.is_solved() or history.success() >= 0.8 or is_rising or history.is_at_its_highest():
        return None
    if now > max(0.1 * start, FIXED):
        return None
    if start <= FIXED:
        how = f"The entropy is {now:.2g}, as it was from the first step on ({start:.2g})"
    else:
        how = f"The entropy fell from {start:.3g} to {now:.2g}"
    at = f" at a success of {history.success():.0%}" if history.reports_success else ""
    return f"{how}{at}: the model gives the same answers and no longer explores."


def entropy_explosion(history: History) -> str | None:
    start, now = history.start("entropy"), history.mean("entropy")
    if start is None or now is None or now < max(2 * start, start + 0.5) or history.is_rising():
        return None
    return f"The entropy rose from {start:.3g} to {now:.3g}: the model is drifting into noise."


def gradient_jump(history: History) -> str | None:
    norms = [step["grad_norm"] for step in history.steps if "grad_norm" in step]
    if len(norms) <= NUM_STEADY or "grad_norm" not in history.steps[-1]:
        return None
    usual = statistics.median(norms[:-1])
    if norms[-1] < max(20 * usual, 5.0):
        return None
    return f"The gradient's norm jumped to {norms[-1]:.3g}, where {usual:.3g} is usual."


def steps_too_large(history: History) -> str | None:
    moved, clipped = history.median("kl"), history.median("clip_fraction")
    if (moved or 0.0) < 0.1 and (clipped or 0.0) < 0.4:
        return None
    if history.num_steps < 2 * NUM_STEADY or history.is_rising() or history.is_solved():
        return None
    return (
        f"The policy moves too far in one update: KL {moved or 0.0:.2g}, "
        f"{clipped or 0.0:.0%} of the tokens clipped."
    )


def steps_too_small(history: History) -> str | None:
    moved, clipped = history.median("kl", 20), history.median("clip_fraction", 20)
    # With a single step of the optimiser nothing has moved yet when it is measured.
    if moved is None or min(history.last("num_steps", 20), default=0.0) < 2:
        return None
    if abs(moved) > 1e-5 or (clipped or 0.0) > 0.001 or history.has_no_spread():
        return None
    if history.is_rising() or history.is_solved():
        return None
    return f"The policy hardly moves (KL {moved:.1g} an update), and the reward does not rise."


def updates_lost(history: History) -> str | None:
    changed = history.median("weights_changed", NUM_STEADY)
    if changed is None or changed >= 0.001 or history.num_steps < NUM_STEADY:
        return None
    return (
        f"A step of the optimiser moves {changed:.2%} of the weights: the others are rounded to "
        "what they were, since the model is in half precision."
    )


def value_useless(history: History) -> str | None:
    num = 2 * NUM_STEADY
    explained = history.median("explained_variance", num)
    if explained is None or explained > 0 or history.num_steps < 3 * NUM_STEADY:
        return None
    has_spread = min(history.last("reward_std", num), default=1.0) > 1e-6
    if not has_spread or history.is_solved(num) or history.is_rising():
        return None  # nothing to explain, or not needed
    return (
        f"The value function explains nothing of the returns (explained variance {explained:.2g} "
        f"over {num} steps; 1 is perfect, 0 a constant)."
    )


def stale_engine(history: History) -> str | None:
    """Detect an engine with old weights: it agrees with the learner in the first step only."""
    gaps, first = history.known("gap_max", 2), history.first.get("gap_max", 1.0)
    if history.num_steps < 3 or len(gaps) < 2 or "weights_behind" in history.steps[-1]:
        return None  # asynchronous training uses older weights on purpose
    if first > 0.01 or min(gaps) < max(100 * first, 0.01):
        return None
    return (
        f"In the first step sampler and learner agreed on the log-probs of the tokens (at most "
        f"{first:.1g} apart); now they do not (up to {max(gaps):.2g} apart). The engine does not "
        "get the weights that are trained, and samples from old ones."
    )


def sampler_gap(history: History) -> str | None:
    divergence, worst = history.median("gap_kl", 3), history.median("gap_max", 3)
    if divergence is None or worst is None or (divergence < 0.01 and worst < 2.0):
        return None
    if stale_engine(history) or history.known("weights_behind", 3):
        return None  # which are more specific: `policy_lag` in asynchronous runs
    return (
        f"Sampler and learner disagree on the probabilities of the tokens: divergence "
        f"{divergence:.2g}, worst log-prob {worst:.2g} apart (exact engines: under 1e-4). "
        "What is learned from is not what was played."
    )


def skipped_steps(history: History) -> str | None:
    num_skipped = history.steps[-1].get("num_skipped_steps", 0.0)
    if not num_skipped:
        return None
    return f"{num_skipped:.0f} steps were skipped: a loss or gradient was not a finite number."
