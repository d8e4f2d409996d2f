"""What a run folder records when a run begins, so that commands can load the same components.

`recorded` writes objects that were given in Python into the settings, by name. `identity` hashes
what each of them does, so that changed code is noticed when the run is started again. `record_run`
adds the rows of datasets that are in no file.
"""

import contextlib
import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.algo.choose import (
    ADVANTAGE_ESTIMATORS,
    POLICY_LOSSES,
    AdvantageEstimator,
    PolicyLoss,
    get_advantage_estimator,
    get_policy_loss,
)
from turnwise.config import (
    RUN,
    ConfigStore,
    DatasetConfig,
    EnvironmentConfig,
    LimitsConfig,
    RewardItem,
)
from turnwise.data import CustomEnvDataset, PromptDataset
from turnwise.data.held_out import shared_rows
from turnwise.data.sources import is_file_name
from turnwise.env import BaseEnvironment, make_environment
from turnwise.env.catalog import ADAPTERS, EnvironmentSource, source_by_name
from turnwise.env.driver import close_environment
from turnwise.episode import episode_limits
from turnwise.reward import WeightedReward
from turnwise.reward.function import step_rewards
from turnwise.runs.places import describe_base, names_in, with_recorded_names
from turnwise.runs.provenance import provenance
from turnwise.runs.run_folder import RunFolder
from turnwise.tools import CalculatorTool, FunctionTool, PythonCodeTool, Tool, ToolRegistry
from turnwise.tools.base import as_tool
from turnwise.tools.by_name import server_words, tools_by_name, uses_to_allow
from turnwise.tools.mcp_source import MCPTool, MCPTools
from turnwise.tools.parsers import PARSERS
from turnwise.tools.python_code import package_folders
from turnwise.trainer.components import OWN_SETTINGS, UserComponents, find_environment
from turnwise.user_code import (
    callable_label,
    code_name,
    fingerprint,
    instance_label,
    is_lost,
    names_code,
    object_label,
    remember_agent,
    remember_code,
    remember_use,
)

MAX_KEPT_BYTES = 64 * 2**20
"""Of the rows of a dataset that are in no file; larger datasets are not kept."""
_MAX_HASHED_ROWS = 100_000
_MAX_STARTS = 20
_UNLIMITED = 2**31 - 1
_DATASETS = ("dataset", "eval_dataset")
_ALGORITHMS: dict[str, tuple[Any, Mapping[str, AdvantageEstimator | PolicyLoss]]] = {
    "adv_estimator": (get_advantage_estimator, ADVANTAGE_ESTIMATORS),
    "policy_loss": (get_policy_loss, POLICY_LOSSES),
}
"""For each setting, what makes a record of a choice, and the built-in records by name."""


@dataclass(frozen=True)
class RunRecord:
    """What the folder of a run records when it begins."""

    config: ConfigStore
    """For `config.yaml`: every setting, with objects that were given in Python by name."""
    files: dict[str, bytes]
    """Rows of datasets that were given in memory, by the name of their file in the folder."""
    facts: dict[str, Any]
    """For `run.json`."""

    def for_folder(self, folder: RunFolder, *, resumes: bool) -> tuple[ConfigStore, dict[str, Any]]:
        """Return the settings and the facts of a folder.

        Paths of files inside the folder are relative to it, so that it can be moved. A resumed run
        keeps the names that it recorded before, of what has not changed.
        """
        config, base = copy.deepcopy(self.config), Path.cwd()
        if resumes and (settings_before := folder.settings()) is not None:
            config, base = with_recorded_names(self.config, settings_before, folder.path)
        facts, before = copy.deepcopy(self.facts), folder.status if resumes else {}
        lost: dict[str, list[str]] = {}  # the settings whose objects a later command cannot load
        here = folder.path.resolve()
        for name in names_in(config):
            file = Path(name.text).expanduser().resolve()
            if name.kind == "rows" and file.is_relative_to(here):
                name.replace(f"{RUN}/{file.relative_to(here)}")
            section, *words = name.setting.split(".")
            setting = words[0] if section == "training" else section
            if section == "environments":
                setting = f"{words[1]} of {list(config.parts())[int(words[0])]}"
            if is_lost(name.text):
                lost.setdefault(setting, []).append(name.text)
        facts["unrecorded"] |= {setting: ", ".join(names) for setting, names in lost.items()}
        facts["base_directory"] = describe_base(base, folder.path)
        paths = {name: setting.path for name, setting in config.datasets()}
        for dataset, rows in facts["datasets"].items():
            path = {"path": paths[dataset]} if "path" in rows else {}
            known = before.get("datasets", {}).get(dataset, {})
            is_same = known.get("hash") == rows["hash"]  # where the rows came from stays known
            facts["datasets"][dataset] = {**(known if is_same else rows), **path}
        # Of the weights with which the run began.
        facts |= {name: before[name] for name in ("model", "tokenizer") if name in before}
        if resumes:
            starts = [*before.get("earlier_starts", []), *filter(None, [before.get("provenance")])]
            facts["earlier_starts"] = starts[-_MAX_STARTS:]
        return config, {**facts, "provenance": provenance()}


def record_run(config: ConfigStore, given: UserComponents, user: UserComponents) -> RunRecord:
    """Record a run; `given` are the user's components, `user` these completed from the settings."""
    settings = recorded(config, given)
    datasets: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    all_rows: dict[str, Any] = {}
    for name, setting, source, rows in _named_datasets(settings, given, user):
        if rows is None or (source is None and setting.path is None):
            continue
        all_rows[name] = rows
        facts: dict[str, Any] = {"path": setting.path, "split": setting.split}
        if source is not None and (setting.path is None or any(map(is_lost, setting.paths))):
            in_python = f"a {type(source).__name__} in Python"
            facts = {"origin": in_python if setting.path else "the environment's openings"}
        first = _row(rows, 0)
        columns = sorted(map(str, first)) if isinstance(first, dict) else []
        facts |= {"rows": len(rows), "hash": _dataset_hash(rows), "columns": columns}
        datasets[name] = facts
        if name.startswith("eval_"):
            others = all_rows.get(name.removeprefix("eval_"), ())
            num_shared, num_compared = shared_rows(rows, others)
            if num_shared:
                facts |= {"rows_trained_on": num_shared, "rows_compared": num_compared}
        if any(map(is_lost, setting.paths)):
            content = _rows_to_keep(rows)
            if isinstance(content, str):
                facts |= {"kept": False, "why_not_kept": content}
                continue
            files[f"{name}.jsonl"] = content
            setting.path = facts["path"] = [f"{RUN}/{name}.jsonl"]
            facts["kept"] = True
    has_curriculum = user.curriculum is not None
    run_facts = {
        "identity": identity(user, config),
        "agent": "the policy that is trained",
        "datasets": datasets,
        "unrecorded": {"curriculum": object_label(user.curriculum)} if has_curriculum else {},
        "limits": None if user.limits is None else dataclasses.asdict(user.limits),
    }
    return RunRecord(settings, files, run_facts)


def _named_datasets(
    settings: ConfigStore, given: UserComponents, user: UserComponents
) -> Iterator[tuple[str, DatasetConfig, Any, Any]]:
    """Yield each dataset: its name, its setting, what was given in Python, and its rows."""
    datasets = dict(settings.datasets())
    owners = {"": (given, user)}
    owners |= {f"-{part.name}": (part.given, part.components) for part in user.mix}
    for ending, (in_python, completed) in owners.items():
        for key in _DATASETS:
            name = f"{key}{ending}"
            yield name, datasets[name], getattr(in_python, key), getattr(completed, key)


# ---- names ----


def recorded(config: ConfigStore, given: UserComponents) -> ConfigStore:
    """Return the settings with everything that was given in Python written in by name.

    `given` are the components that the user passed to the trainer. Those that cannot be imported
    again are written as `<notebook>:Name` and the like.
    """
    settings = copy.deepcopy(config)
    for item, part in zip(settings.environments or (), given.mix, strict=True):
        named = recorded(part.config, part.given)
        item.environment, item.params = named.environment.name, named.environment.params
        item.max_steps = named.environment.max_steps
        item.dataset, item.eval_dataset = named.dataset, named.eval_dataset
        for argument, setting in OWN_SETTINGS.items():
            if getattr(part.given, argument) is not None:  # else that of the run
                setattr(item, setting, getattr(named, setting))
    for setting in ("agent", "expert"):
        if (code := getattr(given, setting)) is not None:
            setattr(settings, setting, callable_label(code))
    source = given.environment
    if source is None and settings.agent is None and settings.environments is None:
        source = find_environment(given, config)  # prompts, if there are only rows
    if source is not None:
        settings.environment = _environment(source, config.environment)
    if isinstance(given.reward_fn, WeightedReward):
        settings.reward = [
            RewardItem(None if function is step_rewards else callable_label(function), weight, name)
            for name, (function, weight) in given.reward_fn.functions.items()
        ]
    elif given.reward_fn is not None:
        settings.reward = callable_label(given.reward_fn)
    if given.tools is not None:
        settings.tools = _tool_entries(given.tools)
    if isinstance(given.parser, str):
        settings.parser = given.parser
    elif given.parser is not None:
        names = (name for name, kind in PARSERS.items() if kind is type(given.parser))
        settings.parser = next(names, None) or instance_label(given.parser)
    if given.model is not None:
        settings.model.model_name, settings.model.local_path = object_label(given.model), None
    if given.system_prompt is not None:
        settings.system_prompt = given.system_prompt
    if given.limits is not None:
        settings.limits = LimitsConfig(**vars(episode_limits(config, given.limits)))
        # Null would mean `inference.max_tokens`.
        settings.limits.max_tokens_per_turn = settings.limits.max_tokens_per_turn or _UNLIMITED
        settings.inference.max_turns = None
    for setting, (make_record, built_in) in _ALGORITHMS.items():
        if (choice := getattr(given, setting)) is not None:
            is_name = isinstance(choice, str)
            label = choice if is_name else _algorithm(make_record(choice), built_in)
            setattr(settings.training, setting, label)
    for setting in _DATASETS:
        if (rows := getattr(given, setting)) is not None:
            setattr(settings, setting, _dataset(rows))
    # The user has run all of this: later commands may, too.
    for code in names_in(settings):
        is_code = code.kind == "code" and names_code(code.text)
        if is_code and code.text.partition(":")[0] not in ADAPTERS:
            remember_code(code.text)
    remember_agent(settings.agent)
    for entry in settings.tools:
        for use in uses_to_allow(entry):
            remember_use(use)
    return settings


def _environment(source: EnvironmentSource, config: EnvironmentConfig) -> EnvironmentConfig:
    if isinstance(source, str):
        return dataclasses.replace(config, name=source)
    if isinstance(source, BaseEnvironment):
        remade = _remaking_config(source, config)
        label = object_label(source) if remade is None else code_name(source)
        return dataclasses.replace(remade or source.config, name=label)
    if isinstance(source, functools.partial) and not source.args:
        with contextlib.suppress(TypeError, ValueError):  # an object, which YAML cannot hold
            if json.loads(json.dumps(source.keywords)) == source.keywords:
                config = dataclasses.replace(config, params=source.keywords | config.params)
    return dataclasses.replace(config, name=code_name(source))


def _remaking_config(
    environment: BaseEnvironment, settings: EnvironmentConfig
) -> EnvironmentConfig | None:
    # The environment's own, or that of the settings: `Maze(**config.environment.params)`.
    for config in (environment.config, settings):
        with contextlib.suppress(Exception):  # the constructor takes more than this config has
            again = make_environment(type(environment), config)
            is_same = fingerprint(again) == fingerprint(environment)
            close_environment(again)
            if is_same:
                return config
    return None


def _algorithm(
    record: AdvantageEstimator | PolicyLoss, known: Mapping[str, AdvantageEstimator | PolicyLoss]
) -> str:
    for name in known:
        if known[name] == record:
            return name
    function: Any = record.function
    label = callable_label(function)
    if record == type(record)(function) or is_lost(label):
        return label
    # A record that declares more than its function is named by its global variable.
    for name, value in vars(sys.modules[function.__module__]).items():
        if value is record:
            return f"{label.rpartition(':')[0]}:{name}"
    return object_label(record)


def _tool_entries(tools: ToolRegistry | Iterable[Any]) -> list[str | dict[str, Any]]:
    # The tools of an MCP server are one entry, unless others are between them: a prompt lists
    # tools in order.
    entries: list[str | dict[str, Any]] = []

    def server(tool: Tool) -> MCPTools | None:
        return tool.source if isinstance(tool, MCPTool) else None

    for source, group in itertools.groupby(map(as_tool, tools), key=server):
        neighbours = list(group)
        if source is None or source.entry is None:
            entries += [_tool_entry(tool) for tool in neighbours]
        elif neighbours == source.tools:
            entries.append({**source.entry})
        else:
            entries.append({**source.entry, "only": [tool.name for tool in neighbours]})
    return entries


def _tool_entry(tool: Tool) -> str | dict[str, Any]:
    if type(tool) is CalculatorTool:
        return "calculator"
    if isinstance(tool, FunctionTool):
        return callable_label(tool.function)
    if type(tool) is not PythonCodeTool:
        return instance_label(tool)
    entry: dict[str, Any] = {"tool": "python", "limits": dataclasses.asdict(tool.limits)}
    if tool.packages:
        entry["packages"] = tool.packages == package_folders(True) or list(tool.packages)
    # Only with the permission of the user.
    return entry if tool.isolated else {**entry, "allow_unsafe": True}


# ---- hashes ----


def identity(user: UserComponents, config: ConfigStore) -> dict[str, str]:
    """Return a hash of each component of a run, by its name in the settings.

    In a mix, components of one environment are named after it: `environment of maze`.
    """
    hashes = {}
    if isinstance(user.agent, str):  # a command is also the files that it names
        files = [Path(word) for word in shlex.split(user.agent) if Path(word).suffix]
        content = b"".join(file.read_bytes() for file in files if file.is_file())
        hashes["agent"] = hashlib.sha256(user.agent.encode() + content).hexdigest()[:16]
    elif user.agent is not None:
        hashes["agent"] = fingerprint(user.agent)
    elif not user.mix:
        code: Any = user.environment
        if isinstance(code, str):
            code = source_by_name(code)
        elif isinstance(code, BaseEnvironment) and _remaking_config(code, config.environment):
            code = type(code)  # as a command that has only its name hashes it
        hashes["environment"] = fingerprint(code)
    if isinstance(user.reward_fn, WeightedReward):
        functions = user.reward_fn.functions.items()
        hashes["reward"] = _hash([[name, w, fingerprint(fn)] for name, (fn, w) in functions])
    else:
        hashes["reward"] = fingerprint(user.reward_fn)
    hashes["system_prompt"] = _hash(user.system_prompt or "")
    hashes["tools"] = _tools_hash(user.tools, config)
    if user.agent is not None and user.expert is not None:
        hashes["expert"] = fingerprint(user.expert)
    for setting, (make_record, built_in) in _ALGORITHMS.items():
        choice = getattr(user, setting) or getattr(config.training, setting)
        if choice not in built_in:  # those are their names
            hashes[setting] = fingerprint(make_record(choice).function)
    if user.dataset is not None:
        hashes["dataset"] = _dataset_hash(user.dataset)
    for part in user.mix:
        for name, value in identity(part.components, part.config).items():
            if value != hashes.get(name):  # shared components are named once
                hashes[f"{name} of {part.name}"] = value
    return hashes


def _tools_hash(tools: ToolRegistry | Iterable[Any] | None, config: ConfigStore) -> str:
    # MCP servers are identified by their entries: they are not started for this.
    entries = config.tools if tools is None else _tool_entries(tools)
    if tools is None:
        tools = tools_by_name([entry for entry in entries if "mcp" not in entry])
    servers = [
        {**entry, "mcp": shlex.join(server_words(entry["mcp"])), "cwd": None}
        for entry in entries
        if not isinstance(entry, str) and "mcp" in entry
    ]
    local = [tool for tool in map(as_tool, tools) if not isinstance(tool, MCPTool)]
    definitions = [tool.definition.to_openai() for tool in local]
    code = [fingerprint(tool.function) for tool in local]
    return _hash([definitions, code, *([servers] if servers else [])])


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _dataset_hash(rows: Any) -> str:
    """Return a hash of the rows; of a very long dataset, of its first rows and its length."""
    digest = hashlib.sha256(str(len(rows)).encode())
    for index in range(min(len(rows), _MAX_HASHED_ROWS)):
        digest.update(json.dumps(_row(rows, index), sort_keys=True, default=repr).encode())
    return digest.hexdigest()[:16]


# ---- rows ----


def _dataset(given: Any) -> DatasetConfig:
    if isinstance(given, CustomEnvDataset):  # the environment's own seeds
        return DatasetConfig()
    origin, paths = DatasetConfig(), list[str | Path]()
    if isinstance(given, str | Path):
        paths = [given]
    elif isinstance(given, list | tuple) and all(map(is_file_name, given)):
        paths = list(given)
    elif type(given) is PromptDataset and given.origin is not None:
        # A subclass may change the rows of the files.
        origin, paths = given.origin, [*given.origin.paths]
    if not paths:
        return DatasetConfig(path=object_label(given))
    here = Path.cwd()
    # Relative to the base directory, where they are below it: the project can be moved.
    names = []
    for path in paths:
        is_below = Path(path).is_relative_to(here)
        names.append(os.fspath(Path(path).relative_to(here) if is_below else path))
    return dataclasses.replace(origin, path=names)


def _rows_to_keep(rows: Any) -> bytes | str:
    """Return the rows as lines of JSON, or why they cannot be written so."""
    content = bytearray()
    for index in range(len(rows)):
        row = _row(rows, index)
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        except (TypeError, ValueError) as error:
            return f"row {index} cannot be written as JSON: {error}"
        if json.loads(line) != row or _row(rows, index) != row:  # a tuple, or made at random
            return f"row {index} changes when it is written as JSON or read again"
        content += line
        if len(content) > MAX_KEPT_BYTES:
            return f"the rows take more than {MAX_KEPT_BYTES // 2**20} MiB"
    return bytes(content)


def _row(rows: Any, index: int) -> Any:
    """Return a row as an episode gets it, without token ids, which follow from it."""
    return rows.plain_row(index) if isinstance(rows, PromptDataset) else rows[index]
