"""A cache of decoded files of episodes: users go from one episode of a file to the next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from turnwise.runs.episode_records import StoredEpisode
from turnwise.runs.episode_store import EpisodeStore, Phase
from turnwise.view.run_files import FileKey, FileStamp

_MOST_FILES = 12
_MOST_BYTES = 2**29
MAX_FILE_BYTES = 2**29
"""The limit for one file, unpacked."""


class DecodedFile(NamedTuple):
    """The episodes of a step, and the phases of that step."""

    episodes: list[StoredEpisode]
    phases: list[Phase]

    @property
    def num_bytes(self) -> int:
        """The approximate size: that of the tokens, and as much again for the texts."""
        agents = [agent for episode in self.episodes for agent in episode.agents]
        arrays = [array for a in agents for array in (a.ids, a.mask, *a.columns.values())]
        return 2 * sum(array.nbytes for array in arrays)


class DecodedFiles:
    """A cache of the last requested files of all runs, bounded in bytes."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[Path, FileKey, FileStamp], DecodedFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, folder: Path, key: FileKey, stamp: FileStamp) -> DecodedFile:
        """Return the file, from the cache if its `stamp` is still the same."""
        name = folder, key, stamp
        with self._lock:
            found = self._files.get(name)
            if found is None:
                store = EpisodeStore(folder, 0, MAX_FILE_BYTES)
                found = DecodedFile(store.read(key[1], key[0]), store.phases(key[1], key[0]))
                self._files[name] = found
            self._files.move_to_end(name)
            while len(self._files) > 1 and self._is_too_much():
                self._files.popitem(last=False)
        return found

    def _is_too_much(self) -> bool:
        size = sum(file.num_bytes for file in self._files.values())
        return len(self._files) > _MOST_FILES or size > _MOST_BYTES
