"""Checks of failed episodes, of the engine, and of the numerics."""

from __future__ import annotations

from turnwise.runs.doctor.history import History


def errors(history: History) -> str | None:
    share = history.mean("errors", 3)
    if share is None or share <= 0.1:
        return None
    kinds = sorted({name for step in history.steps for name in step if name.startswith("errors/")})
    most = max(kinds, key=lambda name: history.mean(name, 3) or 0.0, default=None)
    kind = f", most in the {most.removeprefix('errors/')}" if most else ""
    return f"{share:.0%} of the episodes failed{kind}: they are not learned from."


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
    if stale_engine(history):
        return None  # which is more specific
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
