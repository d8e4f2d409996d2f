"""The sections `dataset` and `eval_dataset`."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.config.fields import Positive, Section, setting


@dataclass
class DatasetConfig(Section):
    """Rows of a dataset: prompts, or the tasks of an environment."""

    path: str | list[str] | None = setting(
        None, "Files of the kind .jsonl, .json or .parquet, or a folder that holds the splits."
    )
    split: str | None = setting(None, "Which split of a folder, for example train.")
    prompt_key: str = setting("prompt", "The column that holds the prompt, without environment.")
    columns: dict[str, str] = setting({}, "New names of columns: {new name: name in the file}.")
    max_rows: Positive | None = setting(None, "Use only the first rows; null: all of them.")

    @property
    def paths(self) -> list[str]:
        """The files; none where none is named."""
        if self.path is None:
            return []
        return [self.path] if isinstance(self.path, str) else self.path
