"""Stores the episodes of a run, one file per step, readable with numpy alone."""

from __future__ import annotations

import io
import json
import logging
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from turnwise.bounded_files import parse_array, parse_json, read_archive
from turnwise.errors import ConfigError
from turnwise.runs.episode_columns import Array, Columns, check_columns, pack, unpack
from turnwise.runs.episode_records import write_episode
from turnwise.runs.episode_schema import (
    FORMAT,
    Phase as Phase,
    StoredEpisode,
    StoredText,
    check_text,
    complete,
)

if TYPE_CHECKING:
    from turnwise.episode import EpisodeResult

_LOG = logging.getLogger("turnwise")
_NAME = re.compile(r"([a-z][a-z-]*)-(\d{8,})\.npz")
_TEXT = "episodes.json"
_ARRAY = ".npy"
MAX_FILE_BYTES = 2**33
"""The limit of one file, unpacked."""
_TEXT_SHARE = 4
"""The text may be this fraction of the limit: parsed, it takes many times as much."""


class EpisodeStore:
    """The episodes of a run in a folder, up to a budget of bytes.

    Failed writes never stop a run: they are logged once.
    """

    def __init__(
        self, folder: str | Path, budget_bytes: float, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        self.folder = Path(folder)
        self.budget_bytes = budget_bytes
        self._max_file_bytes = max_file_bytes
        self._used: int | None = None
        """Bytes of all files; None: not counted yet."""
        self._is_full = False
        self._has_warned = False

    def write(
        self,
        step: int,
        results: Sequence[EpisodeResult],
        columns: Columns | None = None,
        kind: str = "train",
        *,
        began: float | None = None,
        phases: Sequence[Phase] = (),
        baselines: Mapping[str, float] | None = None,
    ) -> None:
        """Write the episodes of a step.

        `columns` are [rows, tokens], with one row per agent of each episode in order, padded on the
        right: `log_probs` (the learner's), `values`, `advantages`, `returns` or any other.
        `began` is the start of the step in seconds since 1970; episode times are relative to it.
        `baselines` are the rewards of greedy episodes by group and agent (`0/agent`), for
        estimators that need them.
        """
        if self.budget_bytes <= 0 or self._is_full:
            return
        streams = [agent.stream for result in results for agent in result.agents]
        check_columns(streams, columns or {})
        path = self._path(step, kind)
        try:
            # An `info` is the environment's own object: even its `repr` may raise.
            episodes = [write_episode(result, began) for result in results]
            data = _encode(pack(streams, columns or {}), episodes, phases, baselines)
            if self._fits(path, len(data)):
                _write(path, data)
        except Exception as error:
            self._used = None
            if not self._has_warned:
                self._has_warned = True
                _LOG.warning(
                    "The episodes of step %d could not be stored in %s: %s: %s. The run continues; "
                    "this is logged only once.",
                    *(step, self.folder, type(error).__name__, error),
                )

    def read(self, step: int, kind: str = "train") -> list[StoredEpisode]:
        """Return the episodes of a step in the order in which they were written."""
        arrays, data, text = self._load(step, kind, lambda name: True)
        place = str(self._path(step, kind))
        rows = unpack(arrays, place)
        agents = [agent for episode in text.episodes for agent in episode.agents]
        written = [agent for episode in data["episodes"] for agent in episode["agents"]]
        if len(rows) != len(agents):
            raise ConfigError(
                f"{place} has the tokens of {len(rows)} agents, expected those of {len(agents)}"
            )
        for agent, its_data, row in zip(agents, written, rows, strict=True):
            complete(agent, its_data, row, place)
        return text.episodes

    def read_text(self, step: int, kind: str = "train") -> tuple[list[dict[str, Any]], list[int]]:
        """Return the JSON of a step's episodes without tokens, which is faster, and the number of
        tokens of each agent."""
        arrays, data, text = self._load(step, kind, lambda name: name == "offsets")
        offsets = arrays.get("offsets")
        num_agents = sum(len(episode.agents) for episode in text.episodes)
        if offsets is None or offsets.shape != (num_agents + 1,):
            raise ConfigError(
                f"{self._path(step, kind)} has no offsets for the tokens of {num_agents} agents"
            )
        return data["episodes"], np.diff(offsets).tolist()

    def phases(self, step: int, kind: str = "train") -> list[Phase]:
        """Return the phases of a step; empty if they were not recorded."""
        return self._load(step, kind, lambda name: False)[2].phases

    def baselines(self, step: int) -> dict[str, float] | None:
        """Return the rewards of a step's greedy episodes; None if there were none."""
        return self._load(step, "train", lambda name: False)[2].baselines

    def _load(
        self, step: int, kind: str, wants: Callable[[str], bool]
    ) -> tuple[dict[str, Array], dict[str, Any], StoredText]:
        """Return the requested arrays, the JSON, and its checked content."""
        path = self._path(step, kind)
        try:
            members = read_archive(
                path,
                lambda name: name == _TEXT or wants(name.removesuffix(_ARRAY)),
                self._max_file_bytes,
            )
        except FileNotFoundError:
            steps = ", ".join(map(str, self.steps(kind))) or "none"
            raise ConfigError(
                f"{self.folder} has no {kind} episodes of step {step}. Steps that it has: {steps}."
            ) from None
        if _TEXT not in members:
            raise ConfigError(f"{path} is not a file of episodes: it has no {_TEXT}")
        written, place = members.pop(_TEXT), f"{path}: {_TEXT}"
        if len(written) > self._max_file_bytes // _TEXT_SHARE:
            raise ConfigError(
                f"{place} has {len(written):,} bytes, expected at most "
                f"{self._max_file_bytes // _TEXT_SHARE:,}"
            )
        data = parse_json(written, place)
        text = check_text(data, place)
        arrays = {
            name.removesuffix(_ARRAY): parse_array(member, f"{path}: {name}")
            for name, member in members.items()
        }
        return arrays, data, text

    def steps(self, kind: str = "train") -> list[int]:
        """Return the steps that have episodes."""
        return sorted(step for path, name, step in self._files() if name == _prefix(kind))

    def rewind(self, step: int) -> None:
        """Remove the episodes of later steps, for a run that resumes from this one."""
        for path, _, its_step in self._files():
            if its_step > step:
                path.unlink(missing_ok=True)
        for draft in self.folder.glob(".*.npz.draft"):
            draft.unlink(missing_ok=True)
        self._used, self._is_full = None, False

    def _path(self, step: int, kind: str) -> Path:
        name = f"{_prefix(kind)}-{step:08d}.npz"
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                f"episodes got the step {step} and the kind {kind!r}, expected a number from 0 on "
                "and a word of small letters"
            )
        return self.folder / name

    def _files(self) -> list[tuple[Path, str, int]]:
        if not self.folder.is_dir():
            return []
        matches = [(path, _NAME.fullmatch(path.name)) for path in self.folder.iterdir()]
        return [(path, match[1], int(match[2])) for path, match in matches if match is not None]

    def _fits(self, path: Path, size: int) -> bool:
        if self._used is None:
            self._used = sum(file.stat().st_size for file, _, _ in self._files())
        replaced = path.stat().st_size if path.exists() else 0
        used = self._used - replaced
        if used + size <= self.budget_bytes:
            self._used = used + size
            return True
        self._is_full = True
        _LOG.warning(
            "%s holds %.3g GB of episodes, and the next step exceeds the budget of "
            "%.3g GB: no more episodes are stored. To allow more, raise logging.episodes_gb.",
            *(self.folder, used / 2**30, self.budget_bytes / 2**30),
        )
        return False


def _prefix(kind: str) -> str:
    return "step" if kind == "train" else kind


def _encode(
    arrays: Mapping[str, Array],
    episodes: list[dict[str, Any]],
    phases: Sequence[Phase],
    baselines: Mapping[str, float] | None,
) -> bytes:
    """Return a zip file as `numpy.savez_compressed` writes it, with the JSON as another member."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            archive.writestr(_member(f"{name}.npy"), member.getvalue())
        text: dict[str, Any] = {"format": FORMAT, "episodes": episodes}
        if phases:
            text["phases"] = [[name, round(a, 6), round(b, 6)] for name, a, b in phases]
        if baselines is not None:
            text["baselines"] = dict(baselines)
        archive.writestr(_member(_TEXT), _json(text))
    return buffer.getvalue()


def _member(name: str) -> zipfile.ZipInfo:
    """Return a fixed date and system, so that the same episodes give the same bytes."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3
    info.external_attr = 0o644 << 16
    return info


def _json(data: Any) -> bytes:
    options: dict[str, Any] = {"separators": (",", ":"), "allow_nan": False}
    try:
        return json.dumps(data, ensure_ascii=False, **options).encode()
    except UnicodeEncodeError:  # half a surrogate pair must be escaped
        return json.dumps(data, **options).encode()


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically, without a sync: losing the last file is harmless."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
