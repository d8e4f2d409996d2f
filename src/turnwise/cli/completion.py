"""Shell completion of environments, settings and runs (`turnwise --install-completion`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

Offer = tuple[str, str]
"""A completion, and a description that some shells show."""


def environments(incomplete: str) -> Iterator[Offer]:
    """Complete names of environments, and Python files that may define one."""
    from turnwise.env.catalog import BUILT_IN

    forms = {"gym:": "Gymnasium", "textarena:": "TextArena", "reasoning-gym:": "reasoning-gym"}
    yield from _matching({**dict.fromkeys(BUILT_IN, "built in"), **forms}, incomplete)
    yield from ((f"{file}:", "your own") for file in _files(incomplete, "*.py"))


def settings(incomplete: str) -> Iterator[Offer]:
    """Complete configuration files, runs, `section.name=`, and the choices of a setting."""
    key, is_given, value = incomplete.partition("=")
    if is_given:
        yield from ((f"{key}={choice}", "") for choice in _choices(key) if choice.startswith(value))
        return
    for file in (*_files(incomplete, "*.yaml"), *_files(incomplete, "*.yml")):
        yield file, "configuration"
    yield from runs(incomplete)
    from turnwise.config import setting_types

    known = {f"{name}=": about for name, (about, _) in setting_types().items()}
    yield from _matching(known, incomplete)


def runs(incomplete: str) -> Iterator[Offer]:
    """Complete folders of runs, folders that contain runs, and checkpoints."""
    for folder in _folders(incomplete):
        if (folder / "state.json").is_file():
            yield str(folder), "checkpoint"
        elif (folder / "run.json").is_file() or (folder / "metrics.jsonl").is_file():
            yield str(folder), "run"
        elif any(folder.glob("*/metrics.jsonl")):
            yield f"{folder}/", "runs"


def runs_and_models(incomplete: str) -> Iterator[Offer]:
    """Complete runs, built-in models, and folders of models."""
    yield from _matching({"tiny": "built in", "smollm2-135m": "built in"}, incomplete)
    yield from runs(incomplete)
    for folder in _folders(incomplete):
        if (folder / "config.json").is_file():
            yield str(folder), "model"


def environments_and_runs(incomplete: str) -> Iterator[Offer]:
    """Complete environments and runs."""
    yield from environments(incomplete)
    yield from runs(incomplete)


def players(incomplete: str) -> Iterator[Offer]:
    """Complete players."""
    names = {"human": "you", "expert": "the environment's own", "random": "random actions"}
    yield from _matching(names, incomplete)
    yield from runs_and_models(incomplete)


def parsers(incomplete: str) -> Iterator[Offer]:
    """Complete parsers of tool calls, and Python files that may define one."""
    from turnwise.tools.parsers import PARSERS

    yield from _matching(dict.fromkeys(PARSERS, ""), incomplete)
    yield from ((f"{file}:", "your own") for file in _files(incomplete, "*.py"))


def metrics(incomplete: str) -> Iterator[Offer]:
    """Complete the metrics that most runs have."""
    names = ("reward", "success", "entropy", "kl", "turns", "tokens_per_episode", "truncated")
    evaluated = [f"eval/{kind}/{name}" for kind in ("greedy", "sampled") for name in names[:2]]
    yield from _matching(dict.fromkeys((*names, *evaluated), ""), incomplete)


def _matching(offers: Mapping[str, str], incomplete: str) -> Iterator[Offer]:
    return (offer for offer in offers.items() if offer[0].startswith(incomplete))


def _choices(key: str) -> list[str]:
    """Return the choices of a setting that has some."""
    from turnwise.config import setting_types

    kind: Any = setting_types().get(key.lstrip("+"), ("", None))[1]
    if kind is bool:
        return ["true", "false"]
    return [str(choice) for choice in get_args(kind)] if get_origin(kind) is Literal else []


def _folders(incomplete: str) -> list[Path]:
    place = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        inside = sorted(path for path in place.expanduser().iterdir() if path.is_dir())
    except OSError:
        return []
    begun = "" if incomplete in ("", ".") else str(Path(incomplete))
    return [path for path in inside if str(path).startswith(begun)]


def _files(incomplete: str, pattern: str) -> list[str]:
    place = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    return sorted(str(path) for path in place.glob(pattern) if str(path).startswith(incomplete))
