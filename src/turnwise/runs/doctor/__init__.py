"""The doctor: reads a run's metrics as they come and says in words what is wrong, and a cure.

>>> doctor = Doctor()
>>> sick = {"reward": 0.0, "reward_std": 0.0, "success": 0.0}
>>> [finding.code for _ in range(9) for finding in doctor.look(sick)]
['too-hard']

What it says follows from the metrics alone, so a resumed run that shows it the old ones first
hears the same. It would rather be silent than cry wolf: most checks wait for several steps, and
are silent while the reward rises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from turnwise.runs.doctor import symptoms
from turnwise.runs.doctor.history import History

__all__ = ["CHECKS", "Doctor", "Finding", "diagnose"]

NUM_REPEAT = 50
"""A finding that lasts is said again after so many steps."""
NUM_GONE = 10
"""One that comes back is said again if it was gone for so many."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    code: str
    """Its short name, for programs: `entropy-collapse`."""
    text: str
    """What was seen, with numbers."""
    cure: str
    """What to try."""

    def __str__(self) -> str:
        return f"{self.text} {self.cure}"


@dataclass(frozen=True)
class Check:
    """A name, what is looked for, and what to try."""

    code: str
    see: Callable[[History], str | None]
    cure: str


# All that the doctor knows. A new check is a function in symptoms.py, an entry here, a test.
CHECKS: tuple[Check, ...] = (
    Check(
        "too-hard",
        symptoms.too_hard,
        "Begin with an easier task (environment.params, a curriculum), warm-start on the expert "
        "(training.warm_start=expert), reward partial progress, or raise training.group_size and "
        "inference.temperature until some episodes differ.",
    ),
    Check(
        "too-easy", symptoms.too_easy, "Stop here, or make the task harder (environment.params)."
    ),
    Check(
        "constant-reward",
        symptoms.constant_reward,
        "Look at the reward: print it for a good and a bad episode (turnwise play --player expert "
        "and --player random). A reward that never differs teaches nothing.",
    ),
    Check(
        "alike-groups",
        symptoms.alike_groups,
        "Raise training.group_size or inference.temperature, mix in tasks of middling "
        "difficulty, or replace such groups (training.resample): a group teaches by the "
        "difference of its members.",
    ),
    Check(
        "entropy-collapse",
        symptoms.entropy_collapse,
        "Set training.entropy_coef (0.01), lower training.learning_rate, raise "
        "inference.temperature, or hold the model with training.kl_loss_coef; go back to a "
        "checkpoint from before.",
    ),
    Check(
        "entropy-explosion",
        symptoms.entropy_explosion,
        "Lower training.entropy_coef and training.learning_rate, set training.kl_loss_coef or "
        "training.target_kl, or lower inference.temperature.",
    ),
    Check(
        "tools-unused",
        symptoms.tools_unused,
        "Look at the episodes: do calls fail, or does guessing earn as much? Reward a useful "
        "call, let tool errors say how to call rightly, or set training.kl_loss_coef.",
    ),
    Check(
        "malformed-calls",
        symptoms.malformed_calls,
        "Check that the prompt shows one whole call and that the parser is the one of that "
        "format, warm-start on good episodes (training.warm_start), and raise "
        "inference.max_tokens if turns are cut.",
    ),
    Check(
        "invalid-actions",
        symptoms.invalid_actions,
        "Show an action in get_prompt_prefix, let the environment accept it with words around "
        "it, warm-start (training.warm_start=random needs no expert), and raise "
        "inference.max_tokens if turns are cut.",
    ),
    Check(
        "cut-turns",
        symptoms.cut_turns,
        "Raise inference.max_tokens, ask for short answers in the prompt, or warm-start: a model "
        "that never learned to end its turn does not end it.",
    ),
    Check(
        "out-of-turns",
        symptoms.out_of_turns,
        "Raise inference.max_turns (and environment.max_steps), shorten the task, or reward "
        "progress on the way.",
    ),
    Check(
        "out-of-tokens",
        symptoms.out_of_tokens,
        "Make observations and prompts shorter, lower inference.max_tokens or "
        "inference.max_turns, or take a model with a longer context.",
    ),
    Check(
        "out-of-time",
        symptoms.out_of_time,
        "Find what is slow (time/environment, time/tools, time/generate in the metrics), or raise "
        "the time limit: limits=EpisodeLimits(max_seconds=...).",
    ),
    Check(
        "out-of-tool-calls",
        symptoms.out_of_tool_calls,
        "Read a few episodes: a model that calls the same tool again and again learns nothing from "
        "the answers. If it needs so many, raise the limit: limits=EpisodeLimits("
        "max_tool_calls=...).",
    ),
    Check(
        "value-useless",
        symptoms.value_useless,
        "Raise training.value_coef or training.update_epochs, try training.critic=separate or a "
        "larger training.batch_size, or an estimator without one: training.adv_estimator=grpo.",
    ),
    Check(
        "sampler-gap",
        symptoms.sampler_gap,
        "Take model.dtype=float32 or inference.backend=local, see that the engine has the newest "
        "weights and the same temperature and chat template, or keep importance correction on.",
    ),
    Check(
        "errors",
        symptoms.errors,
        "Read the failures in the run's log.txt; turnwise check-env finds most of an "
        "environment's own.",
    ),
    Check(
        "skipped-steps",
        symptoms.skipped_steps,
        "If it recurs: lower training.learning_rate, set training.max_grad_norm, take "
        "model.dtype=float32, and see that rewards are of moderate size.",
    ),
    Check(
        "gradient-jump",
        symptoms.gradient_jump,
        "Once is harmless with training.max_grad_norm set. Else lower training.learning_rate, or "
        "look for an extreme reward in this step's episodes.",
    ),
    Check(
        "steps-too-large",
        symptoms.steps_too_large,
        "Lower training.learning_rate or training.update_epochs, or set training.target_kl (0.02).",
    ),
    Check(
        "steps-too-small",
        symptoms.steps_too_small,
        "Raise training.learning_rate (three to ten times).",
    ),
    Check(
        "forgetting",
        symptoms.forgetting,
        "Unless the task was made harder meanwhile: go back to the best checkpoint with a lower "
        "training.learning_rate, or hold the model with training.kl_loss_coef or "
        "training.target_kl.",
    ),
    Check(
        "reward-hacking",
        symptoms.reward_hacking,
        "Read the episodes of highest reward. Give parts that can be had without success a "
        "smaller weight, or pay them only with success.",
    ),
    Check(
        "not-rising",
        symptoms.not_rising,
        "If that is less than you expect: a higher training.learning_rate, a larger "
        "training.batch_size, reward for partial progress, or a warm start. If it is the best "
        "that can be had, the run is done.",
    ),
)


class Doctor:
    """Looks at each step's metrics, in order, and says what is new."""

    def __init__(self) -> None:
        self._history = History()
        self._seen: dict[str, int] = {}
        self._said: dict[str, int] = {}

    def look(self, metrics: Mapping[str, float]) -> list[Finding]:
        """What to say after this step. A finding is said when it begins, again every 50 steps
        while it lasts, and when it returns after 10 steps without it."""
        self._history.add(metrics)
        now = self._history.num_steps
        found = self.present()
        said = [finding for finding in found if self._is_news(finding.code, now)]
        self._seen |= {finding.code: now for finding in found}
        self._said |= {finding.code: now for finding in said}
        return said

    def present(self) -> list[Finding]:
        """All that is wrong as of the last step, said before or not."""
        if not self._history.steps:
            return []
        found = ((check, check.see(self._history)) for check in CHECKS)
        return [Finding(check.code, text, check.cure) for check, text in found if text]

    def _is_news(self, code: str, now: int) -> bool:
        if code not in self._seen:
            return True
        return now - self._seen[code] > NUM_GONE or now - self._said[code] >= NUM_REPEAT


def diagnose(history: Iterable[Mapping[str, float]]) -> list[tuple[int, Finding]]:
    """What the doctor says over a whole run: (step, finding)."""
    doctor = Doctor()
    return [
        (int(step) if math.isfinite(step := metrics.get("step", number)) else number, finding)
        for number, metrics in enumerate(history, 1)
        for finding in doctor.look(metrics)
    ]
