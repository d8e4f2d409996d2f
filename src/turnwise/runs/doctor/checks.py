"""The checks of the doctor, each a function that returns what it observes, with its fix.

Causes come before their consequences. A new check is a function here, a row in docs/debugging.md,
and a test with a run that has it.
"""

import math
import statistics
from collections.abc import Mapping

from turnwise.runs.doctor.check import check, check_share
from turnwise.runs.doctor.history import NUM_RECENT, NUM_STEADY, History

NUM_FLAT = 50
"""Steps without a rise before it is reported."""
FIXED = 0.005
"""Entropy in nats per token below which a policy is nearly deterministic."""

_NOTHING_LEARNED = ("too-hard", "alike-groups", "value-useless", "steps-too-small", "not-rising")
_POINTLESS_TURNS = ("constant-reward", "out-of-turns", "out-of-tool-calls", *_NOTHING_LEARNED)
_LOST_POLICY = (
    "skipped-steps",
    "gradient-jump",
    "entropy-collapse",
    "entropy-explosion",
    "steps-too-large",
    "forgetting",
    "reward-hacking",
    "tools-unused",
    "malformed-calls",
    "unread-calls",
    "invalid-actions",
    "cut-turns",
    "out-of-tokens",
    *_POINTLESS_TURNS,
)

_FLOAT32 = "take model.dtype=float32"
_TARGET_KL = "set training.target_kl (0.02)"
_HOLD_THE_MODEL = "set training.kl_loss_coef to hold the model near its start"
_EASIER = (
    "Begin with an easier task (environment.params, a curriculum); set training.warm_start=expert "
    "to imitate an expert first; reward partial progress; raise training.group_size and "
    "inference.temperature until some episodes differ"
)


def _most_frequent(history: History, prefix: str) -> str | None:
    names = sorted({name for step in history.steps for name in step if name.startswith(prefix)})
    most = max(names, key=lambda name: history.mean(name, 3) or 0.0, default=None)
    return most and most.removeprefix(prefix)


@check(
    "Read the failures in log.txt; turnwise check-env finds most of an environment's own.",
    explains=_POINTLESS_TURNS,
)
def errors(history: History) -> str | None:
    share = history.mean("errors", 3)
    if share is None or share <= 0.1:
        return None
    most = _most_frequent(history, "errors/")
    kind = f", most in the {most}" if most else ""
    return f"{share:.0%} of the episodes failed{kind}: they are not learned from."


@check("Read the failures in log.txt, of what only evaluations play: held-out seeds, eval_dataset.")
def failed_evaluation(history: History) -> str | None:
    shares = [(x, name) for name, x in history.evaluation.items() if name.endswith("/errors")]
    share, name = max(shares, default=(0.0, ""))
    if share == 0:
        return None
    result = "no result" if share == 1 else "a result of the others alone"
    kind = name.removesuffix("/errors")
    return f"The newest evaluation ({kind}) has {result}: {share:.0%} of its episodes failed."


@check(
    "See that the engine gets the weights after each update: a server must accept them (log.txt "
    "has its answers), an engine of your own take them in update_weights; with "
    "inference.backend=local it cannot happen. training.max_log_prob_gap=auto stops such a run.",
    explains=("sampler-gap", *_LOST_POLICY),
)
def stale_engine(history: History) -> str | None:
    """Detect an engine with old weights: it agrees with the learner in the first step only."""
    gaps, first = history.known("gap_max", 2), history.first.get("gap_max", 1.0)
    if history.num_steps < 3 or len(gaps) < 2 or "weights_behind" in history.steps[-1]:
        return None  # asynchronous training uses older weights on purpose
    if first > 0.01 or min(gaps) < max(100 * first, 0.01):
        return None
    return (
        f"In the first step sampler and learner agreed on the log-probs (at most {first:.1g} "
        f"apart); now not (up to {max(gaps):.2g} apart): the engine samples from old weights."
    )


@check(
    f"{_FLOAT32}; take inference.backend=local; see that the engine has the newest weights and the "
    "same temperature and chat template; keep importance correction on",
    explains=_LOST_POLICY,
)
def sampler_gap(history: History) -> str | None:
    divergence, worst = history.median("gap_kl", 3), history.median("gap_max", 3)
    if divergence is None or worst is None or (divergence < 0.01 and worst < 2.0):
        return None
    if stale_engine(history) or history.known("weights_behind", 3):
        return None  # which are more specific: `policy_lag` in asynchronous runs
    return (
        f"Sampler and learner disagree on the probabilities of the tokens: divergence "
        f"{divergence:.2g}, worst log-prob {worst:.2g} apart (exact engines: under 1e-4)."
    )


@check(
    "Halve training.max_staleness, or lower training.learning_rate; keep training.importance_level "
    "on. If the divergence stays with training.max_staleness=0, it is the engine's.",
    explains=_LOST_POLICY,
)
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


def _explodes(history: History) -> bool:
    """Whether the gradient grew to 50 times its start, and that more than once."""
    peak = history.gradient_peak
    if peak is None or peak.after < max(50 * peak.before, 10.0):
        return False
    norms = [step["grad_norm"] for step in history.steps if "grad_norm" in step]

    def size(step: Mapping[str, float]) -> float:
        return max(abs(step.get(name, 0.0)) for name in ("reward_min", "reward_max"))

    # Rewards of another size explain it.
    is_of_rewards = max(map(size, history.steps)) >= 10 * max(size(history.first), 1.0)
    return sum(norm >= 10 * peak.before for norm in norms) >= 2 and not is_of_rewards


@check(
    "Lower training.learning_rate to a tenth, then to a hundredth, and begin anew or from a "
    "checkpoint of before. training.max_grad_norm does not help: the optimiser's step has the size "
    "of the learning rate.",
    explains=_LOST_POLICY,
    is_of_updates=True,
)
def learning_rate_too_high(history: History) -> str | None:
    """Detect updates that destroy the policy: exploding gradients, or entropy jumps."""
    if history.num_steps < 3 or history.is_solved(3) or history.is_rising():
        return None
    has_fallen = history.has_fallen()
    jumps = [
        history.gradient_peak if _explodes(history) else None,
        history.first_jump if has_fallen else None,
    ]
    text = " and the ".join(
        f"{jump.name} went from {jump.before:.3g} to {jump.after:.3g} (step {jump.step})"
        for jump in filter(None, jumps)
    )
    if not text:
        return None
    text = f"The {text}"
    if (rate := history.steps[-1].get("learning_rate")) is not None:
        text += f" at a learning rate of {rate:.3g}"
    if has_fallen:
        now = history.mean("reward", 3) or 0.0
        text += f", and the reward fell from {history.first['reward']:.3g} to {now:.3g}"
    return f"{text}: single updates rewrite the policy."


@check(
    f"If it recurs: lower training.learning_rate; set training.max_grad_norm; {_FLOAT32}; see that "
    "rewards are of moderate size",
    explains=("not-rising",),
)
def skipped_steps(history: History) -> str | None:
    num_skipped = history.steps[-1].get("num_skipped_steps", 0.0)
    if not num_skipped:
        return None
    return f"{num_skipped:.0f} steps were skipped: a loss or gradient was not a finite number."


check_share(
    "cut_turns",
    "{} of the model's turns were cut by the limit of tokens in a turn.",
    "Raise inference.max_tokens; ask for short answers in the prompt; set training.warm_start: a "
    "model that never learned to end its turn does not end it",
    explains=("malformed-calls", "unread-calls", "invalid-actions", *_POINTLESS_TURNS),
)


@check(
    "Set parser to that format (parser=... of the trainer, parser: in YAML), or let the prompt "
    "show a call in the format of this run's parser.",
    explains=("malformed-calls", "invalid-actions", "tools-unused", *_POINTLESS_TURNS),
)
def unread_calls(history: History) -> str | None:
    """Detect tool calls in a format that the parser does not read."""
    share = history.mean("unread_calls", 3)
    if share is None or share < 0.3:
        return None
    most = _most_frequent(history, "unread_calls/")
    written = f"the format {most!r}" if most else "another format"
    return (
        f"{share:.0%} of the turns hold a tool call in {written}, which the parser of this run "
        "does not read: the calls reach the environment as plain text."
    )


check_share(
    "malformed_calls",
    "{} of the turns hold a tool call that cannot be read.",
    "Check that the prompt shows one whole call and that the parser is the one of that format; "
    "set training.warm_start; raise inference.max_tokens if turns are cut",
    explains=("invalid-actions", "tools-unused", *_POINTLESS_TURNS),
)
check_share(
    "invalid_actions",
    "The environment did not understand {} of the actions.",
    "Show an action in get_prompt_prefix; let the environment accept it with words around it; set "
    "training.warm_start (random needs no expert); raise inference.max_tokens if turns are cut",
    explains=_POINTLESS_TURNS,
)


@check(
    "Look at the sign of the reward, and at a reward that comes a step too late: what the "
    "environment returns for an action must be earned by that action.",
    explains=("misplaced-reward", "reward-hacking", *_NOTHING_LEARNED),
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


@check(
    "Of a reward function's numbers for the turns, that of success belongs to the last one; or "
    "return one number for the episode. turnwise view shows which tokens are paid.",
    explains=(*_NOTHING_LEARNED, "entropy-collapse", "forgetting"),
)
def misplaced_reward(history: History) -> str | None:
    shares = history.known("misplaced_reward")
    if len(shares) < NUM_RECENT or min(shares) < 0.9:
        return None
    return (
        f"In {statistics.fmean(shares):.0%} of the successful episodes the reward is on an earlier "
        "turn, and the last one, in which they succeed, has none: what decides is not paid for."
    )


@check(
    "Read what reset(), get_prompt_prefix() and the dataset show of the answer. If choosing from "
    "what is shown is the task, it is solved: make it harder (environment.params).",
    explains=("too-easy", "not-rising", "steps-too-small", "value-useless"),
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


@check(
    "First look at the reward: turnwise play with --player expert and with --player random (of an "
    "agent: turnwise eval, with and without --agent expert) prints what a good and a bad episode "
    f"earn. If these differ, the reward is right and the task too hard for this model. {_EASIER}",
    explains=("entropy-collapse", "entropy-explosion"),  # chance moves the policy
)
def constant_reward(history: History) -> str | None:
    if not history.has_no_spread() or history.success() >= 0.95 or history.is_at_its_highest():
        return None
    reward, success = history.mean("reward") or 0.0, history.success()
    num_episodes = sum(history.last("num_episodes"))
    number = f"{num_episodes:.0f} episodes" if num_episodes else "episodes"
    who = f"{success:.0%}" if success else "none"
    outcome = f"; {who} of them succeeded" if history.reports_success else ""
    earned = f"earned exactly {reward:.4g}, whatever happened in them"
    return f"All {number} of the last {NUM_RECENT} steps {earned}{outcome}."


for _limit, _words, _fix in (
    (
        "time",
        "ran out of time",
        "Find what is slow (time/environment, time/tools, time/generate in the metrics), or raise "
        "the time limit: limits.max_seconds.",
    ),
    (
        "tokens",
        "were longer than the model's context or the token limit",
        "Make observations and prompts shorter, lower inference.max_tokens or "
        "inference.max_turns, or take a model with a longer context.",
    ),
    (
        "tool_calls",
        "made as many tool calls as are allowed",
        "Read a few episodes: a model that calls the same tool again and again learns nothing from "
        "the answers. If it needs so many, raise limits.max_tool_calls.",
    ),
    (
        "turns",
        "ran out of turns before they were over",
        "Raise inference.max_turns (and environment.max_steps), shorten the task, or reward "
        "progress on the way.",
    ),
):
    check_share(
        f"truncated/{_limit}",
        f"{{}} of the episodes {_words}.",
        _fix,
        explains=("constant-reward", *_NOTHING_LEARNED),
    )


@check(_EASIER, explains=("alike-groups", "value-useless", "steps-too-small", "not-rising"))
def too_hard(history: History) -> str | None:
    share = history.mean("zero_variance")
    if share is None or share < 0.8 or history.success() > 0.05 or history.has_no_spread():
        return None
    # Twenty steps show whether it is being learned all the same.
    is_early = history.num_steps < 2 * NUM_STEADY
    if is_early or not history.reports_success or history.is_rising(10, 20, 30):
        return None
    reward = history.mean("reward") or 0.0
    return (
        f"In {share:.0%} of the groups all members earned the same, with success "
        f"{history.success():.0%} and reward {reward:.3g}: too hard for this model."
    )


@check(
    "Stop here, or make the task harder (environment.params).",
    explains=("not-rising", "steps-too-small", "value-useless"),
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
    solved = "solved, nothing is left to learn from"
    return f"In {share:.0%} of the groups all members earned the same, {how}: {solved}."


@check(
    "If it was so from the first step on, a warm start was too long (training.warm_start_steps). "
    "Else go back to a checkpoint from before, and lower training.learning_rate; set "
    f"training.entropy_coef (0.01); raise inference.temperature; {_HOLD_THE_MODEL}",
    explains=("constant-reward", "forgetting", "tools-unused", *_NOTHING_LEARNED),
    is_of_updates=True,
)
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


@check(
    f"Lower training.entropy_coef and training.learning_rate; {_HOLD_THE_MODEL}; {_TARGET_KL}; "
    "lower inference.temperature",
    explains=("constant-reward", "forgetting", "cut-turns", "invalid-actions", *_NOTHING_LEARNED),
    is_of_updates=True,
)
def entropy_explosion(history: History) -> str | None:
    start, now = history.start("entropy"), history.mean("entropy")
    if start is None or now is None or now < max(2 * start, start + 0.5) or history.is_rising():
        return None
    return f"The entropy rose from {start:.3g} to {now:.3g}: the model is drifting into noise."


@check(
    "Raise training.group_size or inference.temperature, mix in tasks of middling difficulty, or "
    "replace such groups (training.resample): a group teaches by the difference of its members.",
    explains=("value-useless", "steps-too-small", "not-rising"),
)
def alike_groups(history: History) -> str | None:
    share = history.mean("zero_variance")
    has_other_name = not 0.05 < history.success() < 0.95 and history.reports_success
    if share is None or share < 0.8 or has_other_name or history.has_no_spread():
        return None
    if history.is_solved() or history.is_rising():
        return None
    return f"In {share:.0%} of the groups all members earned the same: they teach nothing."


@check(
    f"Lower training.learning_rate; lower training.update_epochs; {_TARGET_KL}",
    explains=("forgetting", "gradient-jump", "not-rising"),
    is_of_updates=True,
)
def steps_too_large(history: History) -> str | None:
    moved, clipped = history.median("kl") or 0.0, history.median("clip_fraction") or 0.0
    if moved < 0.1 and clipped < 0.4:
        return None
    if history.num_steps < 2 * NUM_STEADY or history.is_rising() or history.is_solved():
        return None
    how = f"KL {moved:.2g}, {clipped:.0%} of the tokens clipped"
    return f"The policy moves too far in one update: {how}."


@check(
    "Once is harmless with training.max_grad_norm set. Else lower training.learning_rate, or "
    "look for an extreme reward in this step's episodes."
)
def gradient_jump(history: History) -> str | None:
    norms = [step["grad_norm"] for step in history.steps if "grad_norm" in step]
    if len(norms) <= NUM_STEADY or "grad_norm" not in history.steps[-1]:
        return None
    usual = statistics.median(norms[:-1])
    if norms[-1] < max(20 * usual, 5.0):
        return None
    return f"The gradient's norm jumped to {norms[-1]:.3g}, where {usual:.3g} is usual."


@check(
    "Look at the episodes: do calls fail, or does guessing earn as much? Then reward a useful "
    f"call; let tool errors say how to call rightly; {_HOLD_THE_MODEL}"
)
def tools_unused(history: History) -> str | None:
    now, (best, _) = history.mean("tool_calls"), history.best("tool_calls")
    if now is None or best < 0.5 or now > 0.1 * best or history.is_solved():
        return None
    return f"The tools are no longer used: {now:.2g} calls an episode, once {best:.2g}."


@check(
    "Unless the task was made harder in between: go back to the best checkpoint with a lower "
    f"training.learning_rate; {_HOLD_THE_MODEL}; {_TARGET_KL}",
    explains=("not-rising",),
    is_of_updates=True,
)
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


@check(
    "Read the episodes of highest reward. Pay parts that can be had without success less, or not."
)
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


@check(
    "Raise training.value_coef or training.update_epochs; take training.critic=separate; try a "
    "larger training.batch_size; take training.adv_estimator=grpo, which needs no values"
)
def value_useless(history: History) -> str | None:
    num = 2 * NUM_STEADY
    explained = history.median("explained_variance", num)
    if explained is None or explained > 0 or history.num_steps < 3 * NUM_STEADY:
        return None
    has_spread = min(history.last("reward_std", num), default=1.0) > 1e-6
    if not has_spread or history.is_solved(num) or history.is_rising():
        return None  # nothing to explain, or not needed
    how = f"explained variance {explained:.2g} over {num} steps; 1 is perfect, 0 a constant"
    return f"The value function explains nothing of the returns ({how})."


@check(
    "Raise training.learning_rate (three to ten times), or train in model.dtype=float32.",
    explains=("steps-too-small", "not-rising"),
)
def updates_lost(history: History) -> str | None:
    changed = history.median("weights_changed", NUM_STEADY)
    if changed is None or changed >= 0.001 or history.num_steps < NUM_STEADY:
        return None
    rounded = "the others are rounded to what they were, in half precision"
    return f"A step of the optimiser moves {changed:.2%} of the weights: {rounded}."


@check("Raise training.learning_rate (three to ten times).", explains=("not-rising",))
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


@check(
    "If it is the best that can be had, the run is done. Else raise training.learning_rate or "
    "training.batch_size; reward partial progress; set training.warm_start"
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


@check(
    "Raise training.max_staleness or training.batch_size: more episodes are under way at once. "
    "time/environment, time/tools, time/reward and turnwise view show what is slow."
)
def slow_episodes(history: History) -> str | None:
    """Detect a learner and an engine that both wait for environments, tools or rewards."""
    learner = history.median("idle/learner", NUM_STEADY)
    engine = history.median("idle/engine", NUM_STEADY)
    if learner is None or engine is None or min(learner, engine) < 0.6:
        return None
    return (
        f"For {NUM_STEADY} steps the learner waited for episodes {learner:.0%} of the time and "
        f"the engine was idle {engine:.0%} of it: environments, tools or rewards are slow."
    )
