"""Where the files that a run names are: its settings name them as they were named when it began."""

from __future__ import annotations

from pathlib import Path

from turnwise.runs.run_folder import RunFolder


def places_of(run: Path) -> list[Path]:
    """Return the folders in which the code and data of a run may be, the likeliest first.

    The working directory of the run comes first: as it lies beside the run folder, so that a
    project can be moved or copied as a whole, and then where it was. `run` may be a checkpoint.
    """
    run = run.absolute()
    if (run / "state.json").is_file() and (run.parent.parent / "run.json").is_file():
        run = run.parent.parent
    told = RunFolder(run).status.get("provenance")
    told = told if isinstance(told, dict) else {}
    beside, absolute = told.get("working_directory_from_run"), told.get("working_directory")
    found = [
        *([(run / beside).resolve()] if isinstance(beside, str) else []),
        *([Path(absolute)] if isinstance(absolute, str) else []),
        *run.parents,
    ]
    return list(dict.fromkeys(found))
