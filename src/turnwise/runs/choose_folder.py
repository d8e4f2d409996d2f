"""Chooses the folder of a run: a new one, or that of a run to resume with these settings.

A resumed run may change a setting that affects only future steps. It may not if it determines the
weights, the task, or the position in the data and in the random streams.
"""

import copy
import itertools
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.runs.places import names_in, servers_in, with_recorded_names
from turnwise.runs.run_folder import RESTORE, Resume, RunFolder, is_run

_LOG = logging.getLogger("turnwise")

_FIXED = {
    "the weights in the checkpoints are those of this model": "model.model_name model.local_path",
    "a KL term has kept the model close to it": "model.reference",
    "the optimiser's state is kept for this precision": "model.dtype",
    "the adapters in the checkpoints have learned with these weights": "model.load_in_4bit",
    "it decides whether there is a value head in the checkpoints": "training.adv_estimator",
    "its state is in the checkpoints": "training.optimizer",
    "it decides where the value head is in the checkpoints": "training.critic",
    "it decides which weights there are in the checkpoints": "training.lora_rank",
    "it decides what the adapters in the checkpoints are": (
        "training.lora_alpha training.lora_target_modules training.use_rslora"
    ),
    "it defines the return that the value head has learned": "training.gamma",
    "the position in the dataset is counted in batches": "training.batch_size",
    "it decides which rows are trained on": "training.eval_fraction",
    "the order of the data and every random number follow from it": "training.seed",
    "the warm start comes before the first step, and is over": (
        "training.warm_start training.warm_start_steps training.warm_start_learning_rate expert"
    ),
    "it defines the task, and another task is another run": (
        "environment.name environment.max_steps environment.params environments agent reward "
        "tools system_prompt"
    ),
    "each player has the weights of its own model in the checkpoint": "policies",
    "the position in the dataset is counted in its rows": (
        "dataset.path dataset.split dataset.prompt_key dataset.columns dataset.max_rows"
    ),
}
FIXED = {name: reason for reason, names in _FIXED.items() for name in names.split()}
"""Settings that a resumed run must leave as they are, each with the reason; others may change."""


def choose_run_folder(
    config: ConfigStore,
    environment: str,
    resume: Resume = "auto",
    *,
    identity: Mapping[str, str] | None = None,
    allow_changes: bool = True,
) -> tuple[RunFolder, bool]:
    """Return the folder for this run, and whether to resume the run in it. Nothing is created.

    A run given by name may be resumed with changed settings, as far as `FIXED` allows it and unless
    `allow_changes` is False. A run found by its environment must have the same ones. `identity` has
    hashes of environment, reward, tools and dataset: if they differ from the run's, it is resumed
    only with `always`.
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
        if not folder.exists:
            if resume == "always":
                raise ConfigError(f"there is no run to resume in {folder.path}")
            return folder, False
        if not is_run(folder.path) or resume == "never":
            kind = "a run" if is_run(folder.path) else "something that is not a run"
            raise ConfigError(
                f"there is {kind} in {folder.path}. Choose another checkpoint.run_name."
            )
        if obstacles := _obstacles(folder, config, environment, allow_changes=allow_changes):
            raise ConfigError(
                f"the run in {folder.path} has other settings: {'; '.join(obstacles)}. "
                "Resume it with its own config.yaml, or choose another checkpoint.run_name."
            )
        changed = changed_code(folder, identity)
        if changed and resume == "auto":
            raise ConfigError(
                f"{' and '.join(changed)} changed since the run in {folder.path} began. Continue "
                "it with resume=True (or --resume), or choose another checkpoint.run_name."
            )
        return folder, True
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
    names = dict.fromkeys([*before, *identity])
    changed = [name for name in names if before.get(name) != identity.get(name)]
    return [f"the {name.replace('system_prompt', 'system prompt')}" for name in changed]


def _can_resume(folder: RunFolder, config: ConfigStore, environment: str) -> bool:
    """Return whether a run without a name is the one that these settings began."""
    if not is_run(folder.path) or folder.status.get("status") == "finished":
        return False
    try:
        if _obstacles(folder, config, environment, allow_changes=False):
            return False
        with folder.held():
            return True
    except ConfigError as error:  # its settings are damaged, or another process is training in it
        _LOG.warning("the run in %s is not resumed: %s", folder.path, error)
        return False


def _obstacles(
    folder: RunFolder, config: ConfigStore, environment: str, *, allow_changes: bool
) -> list[str]:
    # The class alone: hashes tell whether its code changed, and the file may have moved.
    recorded = str(folder.status.get("environment"))
    if not folder.status_file.exists():
        raise ConfigError(f"{folder.status_file} is missing. {RESTORE}")
    if recorded.rpartition(":")[2] != environment.rpartition(":")[2]:
        return [f"the environment was {recorded}"]
    before = folder.settings()
    if before is None:  # it was killed before it wrote them
        return []
    now = with_recorded_names(config, before, folder.path)[0]
    if allow_changes:
        return refusals(before, now)
    return [str(one) for one in changes_between(before, now) if one.makes_another_run]


def _slug(environment: str) -> str:
    """Return a folder name for an environment.

    >>> _slug("my_games/maze.py:TextMaze"), _slug("gym:CartPole-v1")
    ('TextMaze', 'gym-CartPole-v1')
    """
    if ".py:" in environment:
        environment = environment.rpartition(":")[2]
    return re.sub(r"[^\w.-]+", "-", environment).strip("-.") or "run"


# ---- settings of a resumed run ----

_SAME_EXPERIMENT = ("training.num_epochs", "training.max_steps", "checkpoint.", "logging.", "ray.")
_REFERENCE = (
    "training.use_kl_in_reward and training.kl_loss_coef had no KL term and now have one: the "
    "reference model that it needs is chosen when a run begins"
)


class Change(NamedTuple):
    """A setting with another value in the resumed run."""

    name: str
    before: Any
    now: Any

    @property
    def makes_another_run(self) -> bool:
        """False for settings of place, duration and output: a run without a name is resumed only
        if nothing else differs."""
        return not self.name.startswith(_SAME_EXPERIMENT)

    def __str__(self) -> str:
        return f"{self.name} was {self.before!r} and is {self.now!r}"


def changes_between(before: ConfigStore, now: ConfigStore) -> list[Change]:
    """Return every setting that differs.

    The same file has another path from another working directory, and hashes tell whether its
    content changed: folders of code and rows are not compared. Models and parsers have no such
    hash, so their names are compared unchanged.
    """
    old, new = dict(before.settings()), dict(now.settings())
    old_compared, new_compared = _without_folders(before), _without_folders(now)
    changed = [name for name in new if old_compared[name] != new_compared[name]]
    return [Change(name, old[name], new[name]) for name in changed]


def _without_folders(config: ConfigStore) -> dict[str, Any]:
    config = copy.deepcopy(config)
    config.dataset.path, config.eval_dataset.path = config.dataset.paths, config.eval_dataset.paths
    for name in names_in(config):
        if name.kind in ("code", "rows", "folder") and name.setting != "parser":
            name.replace(name.text.rpartition("/")[2])
    for server in servers_in(config):
        server.pop("cwd", None)
    return dict(config.settings())


def refusals(before: ConfigStore, now: ConfigStore) -> list[str]:
    """Return the changes that a resumed run cannot have, each with the reason."""
    refused = [
        f"{change}, and may not change: {FIXED[change.name]}"
        for change in changes_between(before, now)
        if change.name in FIXED
    ]
    had_kl, has_kl = (
        config.training.use_kl_in_reward or config.training.kl_loss_coef > 0
        for config in (before, now)
    )
    return [*refused, _REFERENCE] if has_kl and not had_kl else refused
