"""Checks of the rewards."""

from __future__ import annotations

import math
import statistics

from turnwise.runs.doctor.history import NUM_RECENT, NUM_STEADY, History

NUM_FLAT = 50
"""Steps without a rise before it is reported."""


def constant_reward(history: History) -> str | None:
    if not history.has_no_spread() or history.success() >= 0.95 or history.is_at_its_highest():
        return None
    reward, success = history.mean("reward") or 0.0, history.success()
    num_episodes = sum(history.last("num_episodes"))
    number = f"All {num_episodes:.0f} episodes" if num_episodes else "All episodes"
    outcome = ""
    if history.reports_success:
        outcome = f"; {f'{success:.0%}' if success else 'none'} of them succeeded"
    return (
        f"{number} of the last {NUM_RECENT} steps earned exactly {reward:.4g}, whatever happened "
        f"in them{outcome}."
    )


def success_unpaid(history: History) -> str | None:
    """Detect successful episodes that earn no more than failed ones."""
    solved, failed = history.known("reward_if_success"), history.known("reward_if_failure")
    if len(solved) < NUM_RECENT or history.has_no_spread():
        return None
    if any(good > bad + 1e-9 for good, bad in zip(solved, failed, strict=True)):
        return None
    return (
        f"Episodes that succeed earn {statistics.fmean(solved):.3g} on average, those that fail "
        f"{statistics.fmean(failed):.3g}, in each of {len(solved)} steps: the reward does not pay "
        "for success."
    )


def misplaced_reward(history: History) -> str | None:
    shares = history.known("misplaced_reward")
    if len(shares) < NUM_RECENT or min(shares) < 0.9:
        return None
    return (
        f"In {statistics.fmean(shares):.0%} of the successful episodes the reward is on an earlier "
        "turn and the last turn, in which they succeed, has none; failed episodes have no reward "
        "on those turns. The turns that decide are not paid for."
    )


def answer_shown(history: History) -> str | None:
    """Detect tasks that are solved from the start by repeating text of the prompt."""
    shown, first = history.start("answers_shown", 3), history.first.get("success", 0.0)
    if shown is None or shown < 0.9 or min(first, history.success(3)) < 0.9:
        return None
    return (
        f"From the first step on {shown:.0%} of the episodes succeed with their first action, and "
        "that action stands word for word in what the agent is shown before it."
    )


def too_hard(history: History) -> str | None:
    share = history.mean("zero_variance")
    if share is None or share < 0.8 or history.success() > 0.05 or history.has_no_spread():
        return None
    # Twenty steps show whether it is being learned all the same.
    if not history.reports_success or history.num_steps < 2 * NUM_STEADY or history.rose_lately():
        return None
    reward = history.mean("reward") or 0.0
    return (
        f"In {share:.0%} of the groups all members earned the same, with success "
        f"{history.success():.0%} and reward {reward:.3g}: too hard for this model."
    )


def too_easy(history: History) -> str | None:
    share = 1.0 if history.has_no_spread() else history.mean("zero_variance")
    if share is None or share < 0.8:
        return None
    if history.success() >= 0.95:
        how = f"with success {history.success():.0%}"
    elif share == 1.0 and history.is_at_its_highest():
        how = f"{history.mean('reward'):.4g}, as much as the best episode so far"
    else:
        return None
    return (
        f"In {share:.0%} of the groups all members earned the same, {how}: solved, nothing is left "
        "to learn from."
    )


def alike_groups(history: History) -> str | None:
    share = history.mean("zero_variance")
    has_other_name = not 0.05 < history.success() < 0.95 and history.reports_success
    if share is None or share < 0.8 or has_other_name or history.has_no_spread():
        return None
    if history.is_solved() or history.is_rising():
        return None
    text = f"In {share:.0%} of the groups all members earned the same: they teach nothing."
    if share < 1.0:
        return text
    return f"{text} Groups differ from each other, so the task decides the reward, not the agent."


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
    rise = history.rise("reward", half)
    if rise is None or rise[0] > 0.5 * rise[1] or history.is_solved(half):
        return None
    if history.has_no_spread() or forgetting(history):
        return None  # those findings are more specific
    reward = history.mean("reward", half) or 0.0
    success = f", success {history.success(half):.0%}" if history.reports_success else ""
    return f"The reward has not risen for {NUM_FLAT} steps: {reward:.3g}{success}."
