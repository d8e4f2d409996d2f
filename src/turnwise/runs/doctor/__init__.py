"""The doctor: reads the metrics of each step, and reports what is wrong, why, and the fix.

>>> doctor = Doctor()
>>> sick = {"reward": 0.0, "reward_std": 0.0, "success": 0.0}
>>> [finding.code for _ in range(9) for finding in doctor.look(sick)]
['constant-reward']

Findings that another one explains are listed as its consequences. They follow from the metrics
alone, so that a resumed run gets the same. To avoid false alarms, most checks wait for several
steps and report nothing while the reward rises.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.json_files import read_json_object
from turnwise.runs.doctor import checks  # noqa: F401 - importing it fills CHECKS
from turnwise.runs.doctor.check import CHECKS
from turnwise.runs.doctor.history import History
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.episode_table import StoredAgent, StoredEpisode
from turnwise.runs.run_folder import RESTORE, RunFolder, is_run

STOPPED = "stopped"
"""The finding about a run that an error ended."""
DAMAGED = "damaged"
"""The finding about a run whose `run.json` cannot be read."""
NUM_REPEAT = 50
"""A lasting finding is reported again after this many steps."""
NUM_GONE = 10
"""A returning finding is reported again if it was absent for this many steps."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a run, and its consequences."""

    code: str
    """Its identifier: `entropy-collapse`."""
    text: str
    """The observation, with numbers."""
    fix: str
    """What to try."""
    consequences: tuple[Finding, ...] = ()
    """Other findings that this one explains."""
    example: str | None = None
    """The id of an episode that shows it: `train-5-0`."""

    @property
    def because(self) -> str:
        """A sentence with the consequences; empty if there are none."""
        names = ", ".join(finding.code for finding in self.consequences)
        return f"Because of this: {names}." if names else ""

    def __str__(self) -> str:
        return " ".join(text for text in (self.text, self.because, self.fix) if text)


class Doctor:
    """Examines the metrics of each step, in order, and reports new findings."""

    def __init__(self, config: ConfigStore | None = None) -> None:
        """`config` has the settings of the run: the doctor advises nothing that they have."""
        self._config = config
        self._history = History()
        self._seen: dict[str, int] = {}
        self._said: dict[str, int] = {}
        self._explained: dict[str, int] = {}
        """The step at which a finding was last the consequence of another."""

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add a step without checking anything, which is faster."""
        self._history.add(metrics)

    def look(self, metrics: Mapping[str, float]) -> list[Finding]:
        """Return the findings to report after this step: those that begin, that have lasted for
        another 50 steps, or that return after 10 steps without them."""
        self.add(metrics)
        now = self._history.num_steps
        findings = self.present()
        self._explained |= {one.code: now for finding in findings for one in finding.consequences}
        said = [finding for finding in findings if self._is_news(finding.code, now)]
        self._seen |= {finding.code: now for finding in findings}
        self._said |= {finding.code: now for finding in said}
        return said

    def present(self) -> list[Finding]:
        """All that is wrong as of the last step, reported before or not; causes first."""
        history = self._history
        if not history.steps:
            return []
        seen = {check: text for check in CHECKS if (text := check.see(history))}
        causes = {
            check.code: next((c.code for c in seen if c.explains_here(check.code, history)), None)
            for check in seen
        }
        roots = {code: _root_cause(code, causes) for code in causes}
        findings = {
            check.code: Finding(check.code, text, check.advise(self._config))
            for check, text in seen.items()
        }
        return [
            dataclasses.replace(
                findings[code],
                consequences=tuple(
                    finding
                    for other, finding in findings.items()
                    if other != code and roots[other] == code
                ),
            )
            for code in findings
            if code in roots.values()
        ]

    def _is_news(self, code: str, now: int) -> bool:
        if now - self._explained.get(code, -NUM_GONE) < NUM_GONE:
            return False  # its cause may be gone for a step or two
        if code not in self._said:
            return True
        return now - self._seen[code] > NUM_GONE or now - self._said[code] >= NUM_REPEAT


def _root_cause(code: str, causes: Mapping[str, str | None]) -> str:
    """Return the finding at which the causes of this one begin; of a circle, the first check."""
    passed = [code]
    while (cause := causes[passed[-1]]) is not None:
        if cause in passed:
            circle = passed[passed.index(cause) :]
            return next(one for one in causes if one in circle)
        passed.append(cause)
    return passed[-1]


def diagnose(
    history: Iterable[Mapping[str, float]], config: ConfigStore | None = None
) -> list[tuple[int, Finding]]:
    """Return all findings of a run as (step, finding)."""
    doctor = Doctor(config)
    return [
        (int(step) if math.isfinite(step := metrics.get("step", number)) else number, finding)
        for number, metrics in enumerate(history, 1)
        for finding in doctor.look(metrics)
    ]


def settings_if_readable(folder: RunFolder) -> ConfigStore | None:
    """Return the settings of a run; None if there are none, or they cannot be read."""
    with contextlib.suppress(ConfigError):
        return folder.settings()
    return None


def findings(run_folder: str | Path) -> list[Finding]:
    """Return the findings of a run as of its last step, causes first, each with an example episode.

    Empty if there are no metrics, and no error stopped the run.
    """
    folder = RunFolder(Path(run_folder))
    if not is_run(folder.path):
        raise ConfigError(f"{run_folder} is not a run, expected the folder of one")
    facts, reported, doctor = (
        dict[str, Any](),
        list[Finding](),
        Doctor(settings_if_readable(folder)),
    )
    for metrics in folder.read_metrics():
        doctor.add(metrics)
    try:
        facts = read_json_object(folder.status_file)
    except FileNotFoundError:
        pass
    except ConfigError as error:
        reported.append(Finding(DAMAGED, f"{error}.", RESTORE))
    if (status := str(facts.get("status", ""))).startswith("stopped: "):
        text = f"After step {facts.get('step', 0)} the run {status}"
        fix = "Fix that and run the same command again: it resumes from the last checkpoint."
        reported.append(Finding(STOPPED, text, fix))
    present = doctor.present()
    examples = _example_episodes(folder, {finding.code for finding in present})
    reported += (dataclasses.replace(one, example=examples.get(one.code)) for one in present)
    if (shared := shared_rows(facts)) is not None:
        reported.append(shared)
    return reported


def shared_rows(facts: Mapping[str, Any]) -> Finding | None:
    """Return how many rows of evaluation datasets are also in the training dataset, if any.

    `facts` is the content of `run.json`.
    """
    texts = [
        f"{rows['rows_trained_on']:,} of {rows['rows_compared']:,} rows of {name} are also in the "
        "training dataset"
        for name, rows in facts.get("datasets", {}).items()
        if "rows_trained_on" in rows
    ]
    if not texts:
        return None
    return Finding(
        "shared-rows",
        f"{' and '.join(texts)}: evaluations on them look better than they would on new rows.",
        "Remove these rows from one of the two datasets, or leave out eval_dataset: then a share "
        "of the training rows is held out by their content (training.eval_fraction).",
    )


def _example_episodes(folder: RunFolder, codes: set[str]) -> dict[str, str]:
    store, examples = EpisodeStore(folder.episodes, 0), dict[str, str]()
    with contextlib.suppress(Exception):  # the file may hold anything
        for step in store.steps()[-1:] if codes else ():
            for index, episode in enumerate(store.read(step)):
                for agent in episode.agents:
                    for code in _shown(episode, agent) & codes:
                        examples.setdefault(code, f"train-{step}-{index}")
    return examples


def _shown(episode: StoredEpisode, agent: StoredAgent) -> set[str]:
    turns = agent.turns
    rewards = (agent.reward and agent.reward.per_turn) or [0.0]
    limit = episode.status.removeprefix("truncated_by_").replace("_", "-")
    succeeds = any(turn.info.get("success") for turn in turns[-1:])
    shown = {
        "errors": episode.status.is_error,
        f"out-of-{limit}": episode.status.is_truncated,
        "cut-turns": any(turn.finish_reason == "length" for turn in turns),
        "malformed-calls": any(turn.malformed for turn in turns),
        "unread-calls": any(not turn.calls for turn in turns),
        "invalid-actions": any(turn.info.get("invalid_action") for turn in turns),
        "success-unpaid": succeeds,
        "answer-shown": succeeds,
        "misplaced-reward": rewards[-1] <= 0 < max(rewards),
        **dict.fromkeys(("constant-reward", "alike-groups", "too-hard"), True),
    }
    return {code for code, is_shown in shown.items() if is_shown}
