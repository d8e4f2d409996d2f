"""What can be wrong with a run: each a function that sees it in the metrics, and says it.

They would rather be silent than cry wolf: most wait for several steps, and many are silent while
the reward rises or the task is solved.
"""

from __future__ import annotations

import math
import statistics

from turnwise.runs.doctor.history import NUM_RECENT, NUM_STEADY, History

NUM_FLAT = 50
"""Steps without a rise that are worth a word."""


def too_hard(history: History) -> str | None:
    if not (alike := _alike(history)) or history.success() > 0.05 or _is_constant(history):
        return None
    reward = history.mean("reward") or 0.0
    return f"{alike} with success {history.success():.0%} and reward {reward:.3g}: too hard as yet."


def too_easy(history: History) -> str | None:
    if not (alike := _alike(history)) or history.success() < 0.95:
        return None
    return f"{alike} with success {history.success():.0%}: solved, nothing is left to learn from."


def constant_reward(history: History) -> str | None:
    if not _is_constant(history):
        return None
    reward = history.mean("reward") or 0.0
    return (
        f"Every episode earned {reward:.4g} for {NUM_RECENT} steps, "
        f"whatever happened in it (success {history.success():.0%})."
    )


def alike_groups(history: History) -> str | None:
    share = history.mean("zero_variance")
    has_other_cause = not 0.05 < history.success() < 0.95 or _is_constant(history)
    if share is None or share < 0.8 or has_other_cause:
        return None
    return f"In {share:.0%} of the groups all members earned the same: they teach nothing."


def _is_constant(history: History) -> bool:
    """All rewards the same, though not all episodes were; or more than nothing for no success."""
    if not _is_without_spread(history) or history.success() >= 0.95:
        return False
    return history.success() > 0.05 or (history.mean("reward") or 0.0) > 0


def _is_without_spread(history: History) -> bool:
    spreads, rewards = history.last("reward_std"), history.last("reward")
    pairs = zip(spreads, rewards, strict=False)
    return bool(spreads) and all(s <= 1e-6 * max(1.0, abs(r)) for s, r in pairs)


def _alike(history: History) -> str | None:
    if _is_without_spread(history):
        return f"All episodes earned the same for {NUM_RECENT} steps,"
    share = history.mean("zero_variance")
    if share is None or share < 0.8:
        return None
    return f"In {share:.0%} of the groups all members earned the same,"


def entropy_collapse(history: History) -> str | None:
    start, now = history.start("entropy"), history.mean("entropy")
    if start is None or now is None or history.num_steps < 2 * NUM_STEADY:
        return None
    if now > 0.1 * start or history.success() >= 0.8 or history.is_rising():
        return None
    return (
        f"The entropy fell from {start:.3g} to {now:.3g} at a success of "
        f"{history.success():.0%}: the model says the same each time and tries nothing new."
    )


def entropy_explosion(history: History) -> str | None:
    start, now = history.start("entropy"), history.mean("entropy")
    if start is None or now is None or now < max(2 * start, start + 0.5) or history.is_rising():
        return None
    return f"The entropy rose from {start:.3g} to {now:.3g}: the model is drifting into noise."


def tools_unused(history: History) -> str | None:
    now, (best, _) = history.mean("tool_calls"), history.best("tool_calls")
    if now is None or best < 0.5 or now > 0.1 * best or history.success() >= 0.9:
        return None
    return f"The tools are no longer used: {now:.2g} calls an episode, once {best:.2g}."


def malformed_calls(history: History) -> str | None:
    share = history.stays_high("malformed_calls", 0.5)
    if share is None:
        return None
    return f"{share:.0%} of the turns hold a tool call that cannot be read{_because_cut(history)}."


def invalid_actions(history: History) -> str | None:
    share = history.stays_high("invalid_actions", 0.5)
    if share is None:
        return None
    return f"The environment did not understand {share:.0%} of the actions{_because_cut(history)}."


def _because_cut(history: History) -> str:
    share = history.mean("cut_turns") or 0.0
    return f"; {share:.0%} were cut by the token limit, which may be why" if share >= 0.5 else ""


def cut_turns(history: History) -> str | None:
    share = history.stays_high("cut_turns", 0.5)
    if share is None or history.success() >= 0.9:
        return None
    return f"{share:.0%} of the model's turns were cut by the limit of tokens in a turn."


def _truncated(history: History, by: str, words: str) -> str | None:
    share = history.stays_high(f"truncated/{by}", 0.5)
    # Where the point is to last until the end, the cut is the success.
    if share is None or history.success() >= 0.5:
        return None
    return f"{share:.0%} of the episodes {words}."


def out_of_turns(history: History) -> str | None:
    return _truncated(history, "turns", "ran out of turns before they were over")


def out_of_tokens(history: History) -> str | None:
    return _truncated(history, "tokens", "were longer than the model's context or the token limit")


def out_of_time(history: History) -> str | None:
    return _truncated(history, "time", "ran out of time")


def out_of_tool_calls(history: History) -> str | None:
    return _truncated(history, "tool_calls", "made as many tool calls as are allowed")


def value_useless(history: History) -> str | None:
    num = 2 * NUM_STEADY
    explained = history.median("explained_variance", num)
    if explained is None or explained > 0 or history.num_steps < 3 * NUM_STEADY:
        return None
    has_spread = min(history.last("reward_std", num), default=1.0) > 1e-6
    is_solved = (history.median("success", num) or 0.0) > 0.9
    if not has_spread or is_solved or history.is_rising():
        return None  # nothing to explain, or not needed
    return (
        f"The value function explains nothing of the returns (explained variance {explained:.2g} "
        f"over {num} steps; 1 is perfect, 0 a constant)."
    )


def sampler_gap(history: History) -> str | None:
    divergence, worst = history.median("gap_kl", 3), history.median("gap_max", 3)
    if divergence is None or worst is None or (divergence < 0.01 and worst < 2.0):
        return None
    return (
        f"Sampler and learner disagree on the probabilities of the tokens: divergence "
        f"{divergence:.2g}, worst log-prob {worst:.2g} apart (exact engines: under 1e-4). "
        "What is learned from is not what was played."
    )


def errors(history: History) -> str | None:
    share = history.mean("errors", 3)
    if share is None or share <= 0.1:
        return None
    kinds = sorted({name for step in history.steps for name in step if name.startswith("errors/")})
    most = max(kinds, key=lambda name: history.mean(name, 3) or 0.0, default=None)
    kind = f", most in the {most.removeprefix('errors/')}" if most else ""
    return f"{share:.0%} of the episodes failed{kind}: they are not learned from."


def skipped_steps(history: History) -> str | None:
    num_skipped = history.steps[-1].get("num_skipped_steps", 0.0)
    if not num_skipped:
        return None
    return f"{num_skipped:.0f} steps were skipped: a loss or gradient was not a finite number."


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
    if history.num_steps < 2 * NUM_STEADY or history.is_rising() or history.success() >= 0.9:
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
    if abs(moved) > 1e-5 or (clipped or 0.0) > 0.001 or _is_without_spread(history):
        return None
    if history.is_rising() or history.success() >= 0.9:
        return None
    return f"The policy hardly moves (KL {moved:.1g} an update), and the reward does not rise."


def forgetting(history: History) -> str | None:
    start, now = history.start("reward"), history.mean("reward", NUM_STEADY)
    best, num_ago = history.best("reward")
    if start is None or now is None or num_ago < NUM_STEADY or history.is_rising():
        return None
    noise = statistics.stdev(history.last("reward", NUM_STEADY)) / math.sqrt(NUM_STEADY)
    spread = history.mean("reward_std", NUM_STEADY) or 0.0
    if best - now < max(0.4 * (best - start), 0.4 * spread, 6 * noise, 1e-6):
        return None
    return f"The reward fell to {now:.3g}; {num_ago} steps ago it was {best:.3g}."


def reward_hacking(history: History) -> str | None:
    ago = 2 * NUM_STEADY
    reward = history.rise("reward", NUM_STEADY, ago)
    success = history.rise("success", NUM_STEADY, ago)
    if reward is None or success is None:
        return None
    if reward[0] < 3 * reward[1] or reward[0] <= 0 or success[0] > -max(0.1, 3 * success[1]):
        return None
    return (
        f"Over {ago} steps the reward rose by {reward[0]:.2g} while the success fell by "
        f"{-success[0]:.0%}: the reward may be earned without solving the task."
    )


def not_rising(history: History) -> str | None:
    half = NUM_FLAT // 2
    rise, success = history.rise("reward", half), history.mean("success", half) or 0.0
    if rise is None or rise[0] > 0.5 * rise[1] or success >= 0.9:
        return None
    if _is_without_spread(history) or forgetting(history):
        return None  # which says more
    reward = history.mean("reward", half) or 0.0
    return f"The reward has not risen for {NUM_FLAT} steps: {reward:.3g}, success {success:.0%}."
