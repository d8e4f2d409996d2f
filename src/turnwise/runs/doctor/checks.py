"""The checks of the doctor: what each one detects, its fix, and which other findings it explains.

Causes come before their consequences. A new check is a function in one of the modules of this
package, an entry here, a row in docs/debugging.md, and a test with a run that has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from turnwise.config import ConfigStore
from turnwise.runs.doctor import policy, rewards, staleness, turns
from turnwise.runs.doctor.history import History


@dataclass(frozen=True)
class Check:
    """A check for one thing that can be wrong."""

    see: Callable[[History], str | None]
    """Returns the observation as text; None: nothing is wrong."""
    lead: str
    """The fix; with `options`, the sentence that they end."""
    options: tuple[str, ...] = ()
    """What to try, except where the settings have it already."""
    explains: tuple[str, ...] = ()
    """The checks whose findings are consequences of this one."""
    is_of_updates: bool = False
    """Whether updates cause it: then it explains nothing that was so in the first step."""
    was_so_at_first: Callable[[History], bool] = lambda history: False
    """Whether it was present in the first step, before any update."""
    is_own_cause: Callable[[History], bool] = lambda history: False
    """Whether no other finding explains it."""
    is_cause: Callable[[History], bool] = lambda history: True
    """Whether it explains others."""

    @property
    def code(self) -> str:
        """Its identifier, from the name of the function: `too-hard` of `too_hard`."""
        return self.see.__name__.replace("_", "-")

    @property
    def fix(self) -> str:
        """All advice."""
        return self.advise(None)

    def advise(self, config: ConfigStore | None) -> str:
        """Return what to try in a run with these settings."""
        options = [option for option in self.options if not _is_done(option, config)]
        words = " or ".join(filter(None, (", ".join(options[:-1]), *options[-1:])))
        words = words if self.lead else words[:1].upper() + words[1:]
        text = " ".join(filter(None, (self.lead, f"{words}." if words else "")))
        if config is not None and config.agent is not None:  # it has no environment
            text = re.sub(r" \((?:and )?environment\.[^)]*\)", "", text)
        return text

    def explains_here(self, other: Check, history: History) -> bool:
        """Return whether the other's finding is a consequence of this one, in this run."""
        if other.code not in self.explains or other.is_own_cause(history):
            return False
        if not self.is_cause(history):
            return False
        return not (self.is_of_updates and other.was_so_at_first(history))


def _is_done(option: str, config: ConfigStore | None) -> bool:
    """Return whether the settings already have what an option advises.

    That is `name=value` with this value, `set name` of a setting that is on, and a warm start.
    """
    if config is None:
        return False
    values = dict(config.settings())
    if "training.warm_start" in option and values["training.warm_start"] is not None:
        return True
    if any(values.get(name) for name in re.findall(r"\bset (\w+\.\w+)", option)):
        return True
    advised = re.findall(r"(\w+\.\w+)=([\w.]+)", option)
    return any(str(values.get(name)) == value for name, value in advised)


def _share_at_first(metric: str) -> Callable[[History], bool]:
    return lambda history: history.first.get(metric, 0.0) >= 0.5


def _had_no_spread(history: History) -> bool:
    return history.first.get("reward_std", 1.0) <= 1e-6


_NOTHING_LEARNED = ("too-hard", "alike-groups", "value-useless", "steps-too-small", "not-rising")
_POINTLESS_TURNS = ("constant-reward", "out-of-turns", "out-of-tool-calls", *_NOTHING_LEARNED)
_LOST_POLICY = (
    *("skipped-steps", "gradient-jump", "entropy-collapse", "entropy-explosion"),
    *("steps-too-large", "forgetting", "reward-hacking", "tools-unused", "malformed-calls"),
    *("unread-calls", "invalid-actions", "cut-turns", "out-of-tokens", *_POINTLESS_TURNS),
)
_EASIER = (
    "begin with an easier task (environment.params, a curriculum)",
    "warm-start on the expert (training.warm_start=expert)",
    "reward partial progress",
    "raise training.group_size and inference.temperature until some episodes differ",
)


CHECKS: tuple[Check, ...] = (
    Check(
        turns.errors,
        "Read the failures in the run's log.txt; turnwise check-env finds most of an "
        "environment's own.",
        explains=_POINTLESS_TURNS,
    ),
    Check(
        policy.stale_engine,
        "See that the engine gets the weights after each update: a server must accept them "
        "(log.txt has its answers), and an engine of your own must take them in update_weights. "
        "With inference.backend=local, which samples from the trained modules, it cannot happen. "
        "training.max_log_prob_gap=auto stops such a run at once.",
        explains=("sampler-gap", *_LOST_POLICY),
    ),
    Check(
        policy.sampler_gap,
        "",
        (
            "take model.dtype=float32",
            "take inference.backend=local",
            "see that the engine has the newest weights and the same temperature and chat template",
            "keep importance correction on",
        ),
        explains=_LOST_POLICY,
    ),
    Check(
        staleness.policy_lag,
        "Halve training.max_staleness, or lower training.learning_rate: the older the samples are, "
        "the smaller the updates must be. Keep training.importance_level on. If the divergence "
        "stays with training.max_staleness=0, it is the engine's.",
        explains=_LOST_POLICY,
    ),
    Check(
        policy.learning_rate_too_high,
        "Lower training.learning_rate to a tenth, then to a hundredth, and begin anew or from a "
        "checkpoint of before. training.max_grad_norm does not help: the optimiser's step has the "
        "size of the learning rate, however short the gradient is cut.",
        explains=_LOST_POLICY,
        is_of_updates=True,
    ),
    Check(
        policy.skipped_steps,
        "If it recurs:",
        (
            "lower training.learning_rate",
            "set training.max_grad_norm",
            "take model.dtype=float32",
            "see that rewards are of moderate size",
        ),
        explains=("not-rising",),
    ),
    Check(
        turns.cut_turns,
        "",
        (
            "raise inference.max_tokens",
            "ask for short answers in the prompt",
            "warm-start (training.warm_start): a model that never learned to end its turn does not "
            "end it",
        ),
        explains=("malformed-calls", "unread-calls", "invalid-actions", *_POINTLESS_TURNS),
        was_so_at_first=_share_at_first("cut_turns"),
    ),
    Check(
        turns.unread_calls,
        "Set parser to that format (parser=... of the trainer, parser: in YAML), or let the prompt "
        "show a call in the format of this run's parser.",
        explains=("malformed-calls", "invalid-actions", "tools-unused", *_POINTLESS_TURNS),
    ),
    Check(
        turns.malformed_calls,
        "",
        (
            "check that the prompt shows one whole call and that the parser is the one of that "
            "format",
            "warm-start on good episodes (training.warm_start)",
            "raise inference.max_tokens if turns are cut",
        ),
        explains=("invalid-actions", "tools-unused", *_POINTLESS_TURNS),
        was_so_at_first=_share_at_first("malformed_calls"),
    ),
    Check(
        turns.invalid_actions,
        "",
        (
            "show an action in get_prompt_prefix",
            "let the environment accept it with words around it",
            "warm-start (training.warm_start=random needs no expert)",
            "raise inference.max_tokens if turns are cut",
        ),
        explains=_POINTLESS_TURNS,
        was_so_at_first=_share_at_first("invalid_actions"),
    ),
    Check(
        rewards.success_unpaid,
        "Look at the sign of the reward, and at a reward that comes a step too late: what the "
        "environment returns for an action must be earned by that action.",
        explains=("misplaced-reward", "reward-hacking", *_NOTHING_LEARNED),
    ),
    Check(
        rewards.misplaced_reward,
        "A reward function that returns one number a turn puts each on its own turn: the reward of "
        "success belongs to the last one. Return one number to pay for the episode as a whole; the "
        "advantages in turnwise view show which tokens are paid.",
        explains=(*_NOTHING_LEARNED, "entropy-collapse", "forgetting"),
    ),
    Check(
        rewards.answer_shown,
        "Read what the agent is shown: reset(), get_prompt_prefix() and the columns of the dataset "
        "may hold what it is to find out. If choosing from what is shown is the task, it is "
        "solved: make it harder (environment.params).",
        explains=("too-easy", "not-rising", "steps-too-small", "value-useless"),
    ),
    Check(
        rewards.constant_reward,
        "First look at the reward: turnwise play with --player expert and with --player random "
        "(of an agent: turnwise eval, with and without --agent expert) prints what a good and a "
        "bad episode earn. If these differ, the reward is right and the task too hard for this "
        "model:",
        _EASIER,
        explains=("entropy-collapse", "entropy-explosion"),  # chance moves the policy
        is_cause=_had_no_spread,
        was_so_at_first=_had_no_spread,
        is_own_cause=lambda history: history.success() > 0,
    ),
    Check(
        turns.out_of_time,
        "Find what is slow (time/environment, time/tools, time/generate in the metrics), or raise "
        "the time limit: limits.max_seconds.",
        explains=("constant-reward", *_NOTHING_LEARNED),
        was_so_at_first=_share_at_first("truncated/time"),
    ),
    Check(
        turns.out_of_tokens,
        "Make observations and prompts shorter, lower inference.max_tokens or "
        "inference.max_turns, or take a model with a longer context.",
        explains=("constant-reward", *_NOTHING_LEARNED),
        was_so_at_first=_share_at_first("truncated/tokens"),
    ),
    Check(
        turns.out_of_tool_calls,
        "Read a few episodes: a model that calls the same tool again and again learns nothing from "
        "the answers. If it needs so many, raise limits.max_tool_calls.",
        explains=("constant-reward", *_NOTHING_LEARNED),
        was_so_at_first=_share_at_first("truncated/tool_calls"),
    ),
    Check(
        turns.out_of_turns,
        "Raise inference.max_turns (and environment.max_steps), shorten the task, or reward "
        "progress on the way.",
        explains=("constant-reward", *_NOTHING_LEARNED),
        was_so_at_first=_share_at_first("truncated/turns"),
    ),
    Check(
        rewards.too_hard,
        "",
        _EASIER,
        explains=("alike-groups", "value-useless", "steps-too-small", "not-rising"),
    ),
    Check(
        rewards.too_easy,
        "Stop here, or make the task harder (environment.params).",
        explains=("not-rising", "steps-too-small", "value-useless"),
    ),
    Check(
        policy.entropy_collapse,
        "If it was so from the first step on, a warm start was too long "
        "(training.warm_start_steps). Else go back to a checkpoint from before, and",
        (
            "set training.entropy_coef (0.01)",
            "lower training.learning_rate",
            "raise inference.temperature",
            "set training.kl_loss_coef to hold the model",
        ),
        explains=("constant-reward", "forgetting", "tools-unused", *_NOTHING_LEARNED),
        is_of_updates=True,
    ),
    Check(
        policy.entropy_explosion,
        "",
        (
            "lower training.entropy_coef and training.learning_rate",
            "set training.kl_loss_coef",
            "set training.target_kl (0.02)",
            "lower inference.temperature",
        ),
        explains=(
            *_NOTHING_LEARNED,
            "constant-reward",
            "forgetting",
            "cut-turns",
            "invalid-actions",
        ),
        is_of_updates=True,
    ),
    Check(
        rewards.alike_groups,
        "Raise training.group_size or inference.temperature, mix in tasks of middling "
        "difficulty, or replace such groups (training.resample): a group teaches by the "
        "difference of its members.",
        explains=("value-useless", "steps-too-small", "not-rising"),
    ),
    Check(
        policy.steps_too_large,
        "",
        (
            "lower training.learning_rate",
            "lower training.update_epochs",
            "set training.target_kl (0.02)",
        ),
        explains=("forgetting", "gradient-jump", "not-rising"),
        is_of_updates=True,
    ),
    Check(
        policy.gradient_jump,
        "Once is harmless with training.max_grad_norm set. Else lower training.learning_rate, or "
        "look for an extreme reward in this step's episodes.",
    ),
    Check(
        turns.tools_unused,
        "Look at the episodes: do calls fail, or does guessing earn as much? Then",
        (
            "reward a useful call",
            "let tool errors say how to call rightly",
            "set training.kl_loss_coef",
        ),
    ),
    Check(
        rewards.forgetting,
        "Unless the task was made harder in between:",
        (
            "go back to the best checkpoint with a lower training.learning_rate",
            "set training.kl_loss_coef to hold the model",
            "set training.target_kl (0.02)",
        ),
        explains=("not-rising",),
        is_of_updates=True,
    ),
    Check(
        rewards.reward_hacking,
        "Read the episodes of highest reward. Give parts that can be had without success a "
        "smaller weight, or pay them only with success.",
    ),
    Check(
        policy.value_useless,
        "",
        (
            "raise training.value_coef or training.update_epochs",
            "try training.critic=separate",
            "try a larger training.batch_size",
            "take an estimator without values: training.adv_estimator=grpo",
        ),
    ),
    Check(
        policy.updates_lost,
        "Raise training.learning_rate (three to ten times), or train in model.dtype=float32.",
        explains=("steps-too-small", "not-rising"),
    ),
    Check(
        policy.steps_too_small,
        "Raise training.learning_rate (three to ten times).",
        explains=("not-rising",),
    ),
    Check(
        rewards.not_rising,
        "If it is the best that can be had, the run is done. Else try",
        (
            "a higher training.learning_rate",
            "a larger training.batch_size",
            "reward for partial progress",
            "a warm start (training.warm_start)",
        ),
    ),
    Check(
        staleness.slow_episodes,
        "Raise training.max_staleness: more episodes are under way at once, and samples become "
        "older (staleness/mean). A larger training.batch_size has the same effect. time/environment"
        ", time/tools and time/reward in the metrics, and the timeline of turnwise view, show what "
        "is slow.",
    ),
)
