"""The settings that may change when a run is resumed, and why the others may not.

A setting may change if it affects only future steps. It may not if it determines the weights, the
task, or the position in the data and in the random streams.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from turnwise.config import ConfigStore
from turnwise.runs.places import NAMES, Named, rewritten

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
    """Return every setting that differs."""
    old = dict(before.settings())
    return [
        Change(name, old[name], value)
        for name, value in now.settings()
        if _comparable(name, old[name]) != _comparable(name, value)
    ]


def _comparable(name: str, value: Any) -> Any:
    """Return a setting without the folders of the code and rows that it names.

    The same file has another path from another working directory; hashes tell whether its content
    changed. Models and parsers have no such hash, so their names are compared unchanged.
    """
    if name not in NAMES or name == "parser":
        return value
    value = [value] if isinstance(value, str) and NAMES[name] == "rows" else value
    return rewritten(name, value, _without_folder)


def _without_folder(name: Named) -> str:
    if name.setting.endswith(".cwd"):  # the working directory of a server
        return ""
    if name.kind not in ("code", "rows", "folder"):
        return name.text
    return name.text.rpartition("/")[2]


def refusals(before: ConfigStore, now: ConfigStore) -> list[str]:
    """Return the changes that a resumed run cannot have, each with the reason."""
    refused = [
        f"{change}, and may not change: {FIXED[change.name]}"
        for change in changes_between(before, now)
        if change.name in FIXED
    ]
    return [*refused, *([_REFERENCE] if _has_kl(now) and not _has_kl(before) else [])]


def _has_kl(config: ConfigStore) -> bool:
    return config.training.use_kl_in_reward or config.training.kl_loss_coef > 0
