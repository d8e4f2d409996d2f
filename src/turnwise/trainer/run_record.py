"""What a run folder says about its run as it begins: settings, facts for `run.json`, rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.config import RUN, ConfigStore, DatasetConfig
from turnwise.data.shared_rows import shared_rows
from turnwise.env.catalog import EnvironmentSource, source_by_name
from turnwise.reward import WeightedReward
from turnwise.trainer.assembly import UserParts
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
    facts: dict[str, Any]
    """For `run.json`: what played a part, with hashes."""
    files: dict[str, bytes]
    """Rows of datasets that were given in memory, by the name of their file in the folder."""

    def settle_in(self, folder: Path) -> None:
        """Name files of the folder itself by their place in it, so that it can be moved."""
        for _, dataset in self.config.datasets():
            if dataset.path is not None:
                dataset.path = [_place_in(folder, path) for path in dataset.paths]


def record_run(
    config: ConfigStore,
    given: UserParts,
    parts: UserParts,
    identity: Mapping[str, str],
    curriculum: Curriculum | None = None,
) -> RunRecord:
    """Record a run. `given` is what Python gave, `parts` the same, filled from the settings."""
    found = recorded(config, given)
    datasets: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    trained_on: dict[str, Any] = {}
    for name, setting, source, rows in _datasets(found, given, parts):
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
    facts = {
        "identity": dict(identity),
        "agent": "the policy that is trained",
        "code": _code(parts, found),
        "datasets": datasets,
        "unrecorded": _unrecorded(found),
    }
    if curriculum is not None:
        facts["code"]["curriculum"] = _code_facts(object_label(curriculum), curriculum)
        facts["unrecorded"]["curriculum"] = object_label(curriculum)
    if parts.limits is not None:
        facts["limits"] = dataclasses.asdict(parts.limits)
    return RunRecord(found, facts, files)


def _shared(rows: Any, trained_on: Any) -> dict[str, int]:
    """How many rows of an evaluation dataset are also trained on, where there are any."""
    if trained_on is None:
        return {}
    found = shared_rows(rows, trained_on)
    shared = {"rows_trained_on": found.num_shared, "rows_compared": found.num_compared}
    return shared if found.num_shared else {}


def _datasets(
    config: ConfigStore, given: UserParts, parts: UserParts
) -> Iterator[tuple[str, DatasetConfig, Any, Any]]:
    """Each dataset of a run: its name, its setting, what Python gave, and its rows."""
    owners = [(given, parts), *((part.given, part.parts) for part in parts.mix)]
    sources = [
        (getattr(own, kind), getattr(filled, kind))
        for own, filled in owners
        for kind in ("dataset", "eval_dataset")
    ]
    for (name, setting), (source, rows) in zip(config.datasets(), sources, strict=True):
        if rows is not None and (source is not None or setting.path is not None):
            yield name, setting, source, rows


def _code(parts: UserParts, config: ConfigStore) -> dict[str, Any]:
    """Where environment, reward and tools are defined, and hashes of what they do."""
    if parts.mix:
        settings = config.parts()
        return {part.name: _code(part.parts, settings[part.name]) for part in parts.mix}
    found: dict[str, Any] = {}
    if parts.environment is not None:
        source = _source_of(parts.environment)
        found["environment"] = _code_facts(config.environment.name, source)
    if isinstance(parts.reward_fn, WeightedReward):
        found["reward"] = [
            {"part": name, "weight": weight, **_code_facts(callable_label(function), function)}
            for name, (function, weight) in parts.reward_fn.functions.items()
        ]
    elif parts.reward_fn is not None:
        found["reward"] = _code_facts(callable_label(parts.reward_fn), parts.reward_fn)
    found["tools"] = config.tools
    return found


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
        "model": [config.model.model_name],
        "dataset": config.dataset.paths,
        "eval_dataset": config.eval_dataset.paths,
    }
    lost = {name: [label for label in found if is_lost(label)] for name, found in labels.items()}
    return {name: ", ".join(found) for name, found in lost.items() if found}


def _place_in(folder: Path, path: str) -> str:
    here, place = folder.absolute(), Path(path).expanduser().absolute()
    is_inside = not path.startswith("<") and place.is_relative_to(here)
    return f"{RUN}/{place.relative_to(here)}" if is_inside else path
