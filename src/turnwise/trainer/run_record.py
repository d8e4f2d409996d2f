"""What a run folder says about its run as it begins: settings, facts for `run.json`, rows."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.config import RUN, ConfigStore, DatasetConfig
from turnwise.data.held_out import shared_rows
from turnwise.env.catalog import EnvironmentSource, source_by_name
from turnwise.reward import WeightedReward
from turnwise.runs.named_files import Named, rewrite_names
from turnwise.runs.places import describe_base, named_modules, with_recorded_names
from turnwise.runs.run_folder import RunFolder
from turnwise.trainer.components import UserComponents
from turnwise.trainer.curriculum import Curriculum
from turnwise.trainer.labels import callable_label, is_lost, object_label
from turnwise.trainer.recorded_rows import rows_facts, rows_to_keep
from turnwise.trainer.recording import recorded
from turnwise.user_code import fingerprint, reference_to


@dataclass(frozen=True)
class RunRecord:
    """The beginning of a run, as its folder keeps it."""

    config: ConfigStore
    """For `config.yaml`: every setting, and what Python gave by name."""
    files: dict[str, bytes]
    """Rows of datasets that were given in memory, by the name of their file in the folder."""
    user: UserComponents
    """What the run consists of, filled from the settings."""
    datasets: Mapping[str, Any]
    """Facts about the rows of each dataset."""
    identity: Mapping[str, str]
    curriculum: Curriculum | None = None

    def settled_in(self, folder: RunFolder, *, resumes: bool) -> tuple[ConfigStore, dict[str, Any]]:
        """Return the settings and the facts for `run.json` as this folder keeps them.

        Files of the folder itself are named by their place in it, so that it can be moved. A run
        that is resumed keeps the names that it recorded, for what is still the same.
        """
        before = folder.settings() if resumes else None
        if before is None:
            config, base = copy.deepcopy(self.config), Path.cwd()
        else:
            config, base = with_recorded_names(self.config, before, folder.path)
        rewrite_names(config, lambda name: _place_in(folder.path, name))
        facts = self._facts(config)
        facts["base_directory"] = describe_base(base, folder.path)
        if before is not None:
            status = folder.status
            for name in ("code", "datasets"):
                facts[name] = _kept(status.get(name), facts[name])
        return config, facts

    def _facts(self, config: ConfigStore) -> dict[str, Any]:
        """What played a part, with hashes."""
        paths = {name: setting.path for name, setting in config.datasets()}
        facts: dict[str, Any] = {
            "identity": dict(self.identity),
            "agent": "the policy that is trained",
            "code": _code(self.user, config),
            "datasets": {
                name: {**rows, "path": paths[name]} if "path" in rows else rows
                for name, rows in self.datasets.items()
            },
            "modules": named_modules(config),
            "unrecorded": _unrecorded(config),
        }
        if self.curriculum is not None:
            label = object_label(self.curriculum)
            facts["code"]["curriculum"] = _code_facts(label, self.curriculum)
            facts["unrecorded"]["curriculum"] = label
        if self.user.limits is not None:
            facts["limits"] = dataclasses.asdict(self.user.limits)
        return facts


def record_run(
    config: ConfigStore,
    given: UserComponents,
    user: UserComponents,
    identity: Mapping[str, str],
    curriculum: Curriculum | None = None,
) -> RunRecord:
    """Record a run. `given` is what Python gave, `parts` the same, filled from the settings."""
    found = recorded(config, given)
    datasets: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    trained_on: dict[str, Any] = {}
    for name, setting, source, rows in _datasets(found, given, user):
        trained_on[name] = rows
        datasets[name] = facts = rows_facts(setting, source, rows)
        if name.startswith("eval_"):
            facts |= _shared(rows, trained_on.get(name.removeprefix("eval_")))
        if not any(map(is_lost, setting.paths)):
            continue
        content, problem = rows_to_keep(rows)
        facts["kept"] = content is not None
        if content is None:
            facts["why_not_kept"] = problem
        else:
            files[f"{name}.jsonl"] = content
            setting.path = facts["path"] = [f"{RUN}/{name}.jsonl"]
    return RunRecord(found, files, user, datasets, identity, curriculum)


def _shared(rows: Any, trained_on: Any) -> dict[str, int]:
    """How many rows of an evaluation dataset are also trained on, where there are any."""
    if trained_on is None:
        return {}
    found = shared_rows(rows, trained_on)
    shared = {"rows_trained_on": found.num_shared, "rows_compared": found.num_compared}
    return shared if found.num_shared else {}


def _datasets(
    config: ConfigStore, given: UserComponents, user: UserComponents
) -> Iterator[tuple[str, DatasetConfig, Any, Any]]:
    """Each dataset of a run: its name, its setting, what Python gave, and its rows."""
    owners = [(given, user), *((part.given, part.components) for part in user.mix)]
    sources = [
        (getattr(own, kind), getattr(filled, kind))
        for own, filled in owners
        for kind in ("dataset", "eval_dataset")
    ]
    for (name, setting), (source, rows) in zip(config.datasets(), sources, strict=True):
        if rows is not None and (source is not None or setting.path is not None):
            yield name, setting, source, rows


def _code(user: UserComponents, config: ConfigStore) -> dict[str, Any]:
    """Where environment, reward and tools are defined, and hashes of what they do."""
    if user.mix:
        settings = config.parts()
        return {part.name: _code(part.components, settings[part.name]) for part in user.mix}
    found: dict[str, Any] = {}
    if user.environment is not None:
        source = _source_of(user.environment)
        found["environment"] = _code_facts(config.environment.name, source)
    names = _reward_names(config)
    if isinstance(user.reward_fn, WeightedReward):
        functions = user.reward_fn.functions
        if len(names) != len(functions):  # one name for the whole
            names = [None] * len(functions)
        found["reward"] = [
            {"part": part, "weight": weight, **_code_facts(name or callable_label(fn), fn)}
            for name, (part, (fn, weight)) in zip(names, functions.items(), strict=True)
        ]
    elif user.reward_fn is not None:
        name = names[0] if names else None
        found["reward"] = _code_facts(name or callable_label(user.reward_fn), user.reward_fn)
    found["tools"] = config.tools
    return found


def _reward_names(config: ConfigStore) -> list[str | None]:
    """How the settings name the functions of the reward; None for the sum of the step rewards."""
    reward = config.environment.reward if config.reward is None else config.reward
    if reward is None or isinstance(reward, str):
        return [reward]
    return [item.function for item in reward]


def _code_facts(name: str, value: object) -> dict[str, str]:
    return {
        "name": name,
        "defined_in": reference_to(value).origin,
        "hash": fingerprint(value),
    }


def _source_of(environment: EnvironmentSource) -> Any:
    return source_by_name(environment) if isinstance(environment, str) else environment


def _unrecorded(config: ConfigStore) -> dict[str, str]:
    """The settings that hold something which a later command cannot make again."""
    if config.environments is not None:
        inner = {name: _unrecorded(part) for name, part in config.parts().items()}
        return {
            f"{setting} of {name}": label
            for name, lost in inner.items()
            for setting, label in lost.items()
        }
    rewards = [config.reward] if isinstance(config.reward, str) else config.reward or []
    labels = {
        "environment": [config.environment.name],
        "reward": [item if isinstance(item, str) else item.function or "" for item in rewards],
        "tools": [tool for tool in config.tools if isinstance(tool, str)],
        "parser": [config.parser],
        "adv_estimator": [config.training.adv_estimator],
        "policy_loss": [config.training.policy_loss],
        "model": [config.model.model_name],
        "dataset": config.dataset.paths,
        "eval_dataset": config.eval_dataset.paths,
    }
    lost = {name: [label for label in found if is_lost(label)] for name, found in labels.items()}
    return {name: ", ".join(found) for name, found in lost.items() if found}


def _place_in(folder: Path, name: Named) -> str:
    here, place = folder.resolve(), Path(name.text).expanduser().resolve()
    is_inside = not name.text.startswith("<") and place.is_relative_to(here)
    is_kept = is_inside and name.kind == "rows"
    return f"{RUN}/{place.relative_to(here)}" if is_kept else name.text


def _kept(before: Any, now: Any) -> Any:
    """Facts about what is still the same stay as they were recorded, under the names of now."""
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [_kept(old, new) for old, new in zip(before, now, strict=True)]
    if not isinstance(before, dict) or not isinstance(now, dict):
        return now
    if "hash" in now and now["hash"] == before.get("hash"):
        return {**before, **{key: now[key] for key in ("name", "path") if key in now}}
    return {name: _kept(before.get(name), value) for name, value in now.items()}
