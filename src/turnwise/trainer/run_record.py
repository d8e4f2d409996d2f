"""What a run folder records when a run begins: settings, facts for `run.json`, rows."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from turnwise.config import RUN, ConfigStore, DatasetConfig
from turnwise.data.held_out import shared_rows
from turnwise.models.empty import device_of, state_values
from turnwise.runs.named_files import Named, names_of, rewrite_names
from turnwise.runs.places import describe_base, with_recorded_names
from turnwise.runs.run_folder import RunFolder
from turnwise.trainer.assembly import RunComponents
from turnwise.trainer.components import UserComponents
from turnwise.trainer.curriculum import Curriculum
from turnwise.trainer.recorded_rows import rows_facts, rows_to_keep
from turnwise.trainer.recording import recorded
from turnwise.user_code import is_lost, object_label

_MAX_HASHED_WHOLE = 50_000_000
"""Parameters of a model that is hashed whole, which takes a fraction of a second."""
_NUM_HASHED_VALUES = 4096


@dataclass(frozen=True)
class RunRecord:
    """What the folder of a run records when it begins."""

    config: ConfigStore
    """For `config.yaml`: every setting, with objects that were given in Python by name."""
    files: dict[str, bytes]
    """Rows of datasets that were given in memory, by the name of their file in the folder."""
    user: UserComponents
    """The components of the run, completed from the settings."""
    datasets: Mapping[str, Any]
    """Facts about the rows of each dataset."""
    identity: Mapping[str, str]
    curriculum: Curriculum | None = None

    def for_folder(self, folder: RunFolder, *, resumes: bool) -> tuple[ConfigStore, dict[str, Any]]:
        """Return the settings and the facts for `run.json` of a folder.

        Paths of files inside the folder are relative to it, so that it can be moved. A resumed run
        keeps the names that it recorded before, of what has not changed.
        """
        before = folder.settings() if resumes else None
        if before is None:
            config, base = copy.deepcopy(self.config), Path.cwd()
        else:
            config, base = with_recorded_names(self.config, before, folder.path)
        rewrite_names(config, lambda name: _name_in(folder.path, name))
        facts = self._facts(config)
        facts["base_directory"] = describe_base(base, folder.path)
        recorded_rows = folder.status.get("datasets", {}) if resumes else {}
        for name, rows in facts["datasets"].items():
            known = recorded_rows.get(name, {})
            if known.get("hash") == rows["hash"]:  # where the rows came from stays known
                facts["datasets"][name] = {**known, **{k: rows[k] for k in ("path",) if k in rows}}
        return config, facts

    def _facts(self, config: ConfigStore) -> dict[str, Any]:
        """Return the components of the run, with hashes."""
        paths = {name: setting.path for name, setting in config.datasets()}
        facts: dict[str, Any] = {
            "identity": dict(self.identity),
            "agent": "the policy that is trained",
            "datasets": {
                name: {**rows, "path": paths[name]} if "path" in rows else rows
                for name, rows in self.datasets.items()
            },
            "unrecorded": _unrecorded(config),
        }
        if self.curriculum is not None:
            facts["unrecorded"]["curriculum"] = object_label(self.curriculum)
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
    """Record a run; `given` are the user's components, `user` these completed from the settings."""
    settings = recorded(config, given)
    datasets: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    trained_on: dict[str, Any] = {}
    for name, setting, source, rows in _datasets(settings, given, user):
        trained_on[name] = rows
        datasets[name] = facts = rows_facts(setting, source, rows)
        if name.startswith("eval_"):
            training_rows = trained_on.get(name.removeprefix("eval_"))
            shared = None if training_rows is None else shared_rows(rows, training_rows)
            if shared is not None and shared.num_shared:
                facts["rows_trained_on"] = shared.num_shared
                facts["rows_compared"] = shared.num_compared
        if not any(map(is_lost, setting.paths)):
            continue
        content, problem = rows_to_keep(rows)
        facts["kept"] = content is not None
        if content is None:
            facts["why_not_kept"] = problem
        else:
            files[f"{name}.jsonl"] = content
            setting.path = facts["path"] = [f"{RUN}/{name}.jsonl"]
    return RunRecord(settings, files, user, datasets, identity, curriculum)


def _datasets(
    config: ConfigStore, given: UserComponents, user: UserComponents
) -> Iterator[tuple[str, DatasetConfig, Any, Any]]:
    """Yield each dataset of a run: its name, its setting, the given object, and its rows."""
    owners = [(given, user), *((part.given, part.components) for part in user.mix)]
    sources = [
        (getattr(as_given, kind), getattr(filled, kind))
        for as_given, filled in owners
        for kind in ("dataset", "eval_dataset")
    ]
    for (name, setting), (source, rows) in zip(config.datasets(), sources, strict=True):
        if rows is not None and (source is not None or setting.path is not None):
            yield name, setting, source, rows


def _unrecorded(config: ConfigStore) -> dict[str, str]:
    """Return the settings whose objects a later command cannot load."""
    parts = list(config.parts())
    lost: dict[str, list[str]] = {}
    for name in names_of(config):
        section, *words = name.setting.split(".")
        setting = words[0] if section == "training" else section
        if section == "environments":
            setting = f"{words[1]} of {parts[int(words[0])]}"
        if is_lost(name.text):
            lost.setdefault(setting, []).append(name.text)
    return {setting: ", ".join(labels) for setting, labels in lost.items()}


def _name_in(folder: Path, name: Named) -> str:
    here, path = folder.resolve(), Path(name.text).expanduser().resolve()
    is_inside = not name.text.startswith("<") and path.is_relative_to(here)
    is_kept = is_inside and name.kind == "rows"
    return f"{RUN}/{path.relative_to(here)}" if is_kept else name.text


def model_facts(
    components: RunComponents, config: ConfigStore, *, is_start: bool
) -> dict[str, Any]:
    """Return model, tokenizer and engine for `run.json`; `is_start` adds a hash of the weights."""
    policy = components.learner.model.policy
    model: dict[str, Any] = {
        "name": config.model.local_path or config.model.model_name,
        "class": type(policy).__name__,
        "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        "dtype": str(policy.dtype).removeprefix("torch."),
        "device": str(device_of(policy)),
    }
    if is_start:
        model |= _weights_hash(policy)
    engine = {
        "backend": config.inference.backend,
        "class": type(components.engine).__name__,
        "shares_weights": components.shares_weights,
        "temperature": config.inference.temperature,
        "top_p": config.inference.top_p,
        "stall_timeout": config.inference.stall_timeout,
        **components.engine.options,
    }
    return {"model": model, "tokenizer": _tokenizer_facts(components.tokenizer), "engine": engine}


def _weights_hash(model: torch.nn.Module) -> dict[str, str]:
    """Return a hash of the weights, and what it covers: all, or a sample of a large model."""
    is_whole = sum(x.numel() for x in model.state_dict().values()) <= _MAX_HASHED_WHOLE
    digest = hashlib.sha256()
    for name, tensor in state_values(model):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        values = tensor.reshape(-1)
        if not is_whole:
            values = values[:: max(1, len(values) // _NUM_HASHED_VALUES)][:_NUM_HASHED_VALUES]
        digest.update(values.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    sample = f"names, shapes and {_NUM_HASHED_VALUES} evenly spaced values of each tensor"
    return {"hash": digest.hexdigest(), "hash_covers": "all weights" if is_whole else sample}


def _tokenizer_facts(tokenizer: Any) -> dict[str, Any]:
    """Return the class of a tokenizer, its size, and hashes of it and of its chat template."""
    core = getattr(tokenizer, "backend_tokenizer", None)  # tokenizers in Python have none
    text = json.dumps(tokenizer.get_vocab(), sort_keys=True) if core is None else core.to_str()
    template = getattr(tokenizer, "chat_template", None)
    return {
        "class": type(tokenizer).__name__,
        "size": len(tokenizer),
        "hash": hashlib.sha256(text.encode()).hexdigest(),
        "chat_template_hash": None if not template else _text_hash(template),
    }


def _text_hash(template: Any) -> str:
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
