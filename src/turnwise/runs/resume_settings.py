"""The settings that may change when a run is resumed, and why the others may not.

A setting may change if it affects only future steps. It may not if it determines the weights, the
task, or the position in the data and in the random streams.
"""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from turnwise.config import ConfigStore
from turnwise.runs.places import names_in, servers_in

_MODEL = "the weights in the checkpoints are those of this model"
_TASK = "it defines the task, and another task is another run"
_DATA = "the position in the dataset is counted in its rows"
_ADAPTERS = "it decides what the adapters in the checkpoints are"
_IMITATION = "the warm start comes before the first step, and is over"

FIXED: Mapping[str, str] = {
    "model.model_name": _MODEL,
    "model.local_path": _MODEL,
    "model.reference": "a KL term has kept the model close to it",
    "model.dtype": "the optimiser's state is kept for this precision",
    "model.load_in_4bit": "the adapters in the checkpoints have learned with these weights",
    "training.adv_estimator": "it decides whether there is a value head in the checkpoints",
    "training.optimizer": "its state is in the checkpoints",
    "training.critic": "it decides where the value head is in the checkpoints",
    "training.lora_rank": "it decides which weights there are in the checkpoints",
    "training.lora_alpha": _ADAPTERS,
    "training.lora_target_modules": _ADAPTERS,
    "training.use_rslora": _ADAPTERS,
    "training.gamma": "it defines the return that the value head has learned",
    "training.batch_size": "the position in the dataset is counted in batches",
    "training.eval_fraction": "it decides which rows are trained on",
    "training.seed": "the order of the data and every random number follow from it",
    "training.warm_start": _IMITATION,
    "training.warm_start_steps": _IMITATION,
    "training.warm_start_learning_rate": _IMITATION,
    "expert": _IMITATION,
    "environment.name": _TASK,
    "environment.max_steps": _TASK,
    "environment.params": _TASK,
    "environments": _TASK,
    "policies": "each player has the weights of its own model in the checkpoint",
    "agent": _TASK,
    "reward": _TASK,
    "tools": _TASK,
    "system_prompt": _TASK,
    "dataset.path": _DATA,
    "dataset.split": _DATA,
    "dataset.prompt_key": _DATA,
    "dataset.columns": _DATA,
    "dataset.max_rows": _DATA,
}
"""Settings that a resumed run must leave as they are, each with the reason; others may change."""

_SAME_EXPERIMENT = {"training.num_epochs", "training.max_steps"}
_SAME_EXPERIMENT_SECTIONS = ("checkpoint.", "logging.", "ray.")
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
        is_same = self.name in _SAME_EXPERIMENT or self.name.startswith(_SAME_EXPERIMENT_SECTIONS)
        return not is_same

    def __str__(self) -> str:
        return f"{self.name} was {self.before!r} and is {self.now!r}"


def changes_between(before: ConfigStore, now: ConfigStore) -> list[Change]:
    """Return every setting that differs.

    The same file has another path from another working directory, and hashes tell whether its
    content changed: folders of code and rows are not compared. Models and parsers have no such
    hash, so their names are compared unchanged.
    """
    old, same_old, same_new = (
        dict(before.settings()),
        _without_folders(before),
        _without_folders(now),
    )
    return [
        Change(name, old[name], value)
        for name, value in now.settings()
        if same_old[name] != same_new[name]
    ]


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
    begins_with_kl, has_kl = (
        config.training.use_kl_in_reward or config.training.kl_loss_coef > 0
        for config in (before, now)
    )
    return [*refused, _REFERENCE] if has_kl and not begins_with_kl else refused
