"""Chooses the folder of a run: a new one, or that of a run to resume."""

import itertools
import logging
import re
from collections.abc import Mapping
from pathlib import Path

from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.runs.places import with_recorded_names
from turnwise.runs.resume_settings import changes_between, refusals
from turnwise.runs.run_folder import Resume, RunFolder

_LOG = logging.getLogger("turnwise")


def choose_run_folder(
    config: ConfigStore,
    environment: str,
    resume: Resume = "auto",
    *,
    identity: Mapping[str, str] | None = None,
    allow_changes: bool = True,
) -> tuple[RunFolder, bool]:
    """Return the folder for this run, and whether to resume the run in it. Nothing is created.

    A run given by name may be resumed with changed settings, as far as `resume_settings` allows it
    and unless `allow_changes` is False. A run found by its environment must have the same ones.
    `identity` has hashes of environment, reward, tools and dataset: if they differ from the run's,
    it is resumed only with `always`.
    """
    base = Path(config.checkpoint.output_dir).expanduser()
    name = config.checkpoint.run_name
    if name is not None:
        if not re.fullmatch(r"[\w.][\w.+=-]*", name) or name in (".", ".."):
            raise ConfigError(
                f"checkpoint.run_name got {name!r}, expected a folder's name of letters, digits, "
                "dots and dashes"
            )
        folder = RunFolder(base / name)
        is_resumed = _resumes_named_run(folder, config, environment, resume, allow_changes)
        changed = changed_code(folder, identity) if is_resumed else []
        if changed and resume == "auto":
            raise ConfigError(
                f"{' and '.join(changed)} changed since the run in {folder.path} began. To "
                "continue it in spite of that, pass resume=True (or --resume); for a new run, "
                "choose another checkpoint.run_name."
            )
        return folder, is_resumed
    stem = _slug(environment)
    for number in itertools.count(1):
        folder = RunFolder(base / (stem if number == 1 else f"{stem}-{number}"))
        if not folder.exists:
            break
        if resume != "never" and _can_resume(folder, config, environment):
            changed = changed_code(folder, identity)
            if not changed or resume == "always":
                return folder, True
            _LOG.warning(
                "%s changed since the run in %s began: a new run begins in a folder of its "
                "own. To continue the old one in spite of that, pass resume=True (or --resume).",
                " and ".join(changed),
                folder.path,
            )
    if resume == "always":
        raise ConfigError(
            f"there is no run to resume in {base}: none with these settings that did not end. "
            "Name it with checkpoint.run_name, or leave out --resume to begin a new one."
        )
    return folder, False


def changed_code(folder: RunFolder, identity: Mapping[str, str] | None) -> list[str]:
    """Return the components of a run that have changed: `the reward`, `the dataset` ..."""
    before = folder.status.get("identity")
    if identity is None or not isinstance(before, dict):
        return []
    return [
        f"the {name.replace('_', ' ', 1) if name.startswith('system_prompt') else name}"
        for name in dict.fromkeys([*before, *identity])
        if before.get(name) != identity.get(name)
    ]


def _resumes_named_run(
    folder: RunFolder,
    config: ConfigStore,
    environment: str,
    resume: Resume,
    allow_changes: bool,
) -> bool:
    """Return whether to resume the run that the user named; raise if that is impossible."""
    if not folder.exists:
        if resume == "always":
            raise ConfigError(f"there is no run to resume in {folder.path}")
        return False
    is_run = folder.status_file.exists() or folder.has_checkpoints
    if not is_run or resume == "never":
        kind = "there is a run in" if is_run else "there is something that is not a run in"
        raise ConfigError(f"{kind} {folder.path}. Choose another checkpoint.run_name.")
    before, now = _settings_then_and_now(folder, config)
    refused = refusals(before, now)
    if not allow_changes:
        changes = changes_between(before, now)
        refused = [str(change) for change in changes if change.makes_another_run]
    if not _is_same_environment(folder, environment):
        refused.insert(0, f"the environment was {folder.status.get('environment')}")
    if refused:
        raise ConfigError(
            f"the run in {folder.path} has other settings: {'; '.join(refused)}. "
            "Resume it with its own config.yaml, or choose another checkpoint.run_name."
        )
    return True


def _can_resume(folder: RunFolder, config: ConfigStore, environment: str) -> bool:
    if not folder.status_file.exists() and not folder.has_checkpoints:
        return False  # not a run
    is_finished = folder.status.get("status") == "finished"
    if is_finished or not _is_same_environment(folder, environment):
        return False
    try:
        before, now = _settings_then_and_now(folder, config)
        if any(change.makes_another_run for change in changes_between(before, now)):
            return False
        with folder.held():
            return True
    except ConfigError as error:  # its settings are damaged, or another process is training in it
        _LOG.warning("the run in %s is not resumed: %s", folder.path, error)
        return False


def _is_same_environment(folder: RunFolder, environment: str) -> bool:
    """Return whether a run can be of this class; hashes tell whether its code changed."""
    before = str(folder.status.get("environment"))
    return before.rpartition(":")[2] == environment.rpartition(":")[2]


def _settings_then_and_now(folder: RunFolder, now: ConfigStore) -> tuple[ConfigStore, ConfigStore]:
    """Return the settings of a run, and those of now under the names that the run recorded.

    A run that was killed before it wrote its settings has those of now.
    """
    before = folder.settings()
    if before is None:
        return now, now
    return before, with_recorded_names(now, before, folder.path)[0]


def _slug(environment: str) -> str:
    """Return a folder name for an environment.

    >>> _slug("my_games/maze.py:TextMaze"), _slug("gym:CartPole-v1")
    ('TextMaze', 'gym-CartPole-v1')
    """
    if ".py:" in environment:
        environment = environment.rpartition(":")[2]
    return re.sub(r"[^\w.-]+", "-", environment).strip("-.") or "run"
