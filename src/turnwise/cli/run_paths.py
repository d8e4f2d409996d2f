"""Finds the folder of a run from the name that a user typed, or raises a helpful error."""

from pathlib import Path

from turnwise.errors import ConfigError
from turnwise.runs.checkpoints import CheckpointStore
from turnwise.runs.run_folder import RunFolder, is_checkpoint, is_run, run_containing


def find_run(name: str | Path) -> Path | None:
    """Return the folder if it is one of a run or of a checkpoint; None for anything else."""
    folder = Path(name).expanduser()
    return folder if is_run(folder) or is_checkpoint(folder) else None


def find_source(name: str | None, checkpoint: str = "last") -> Path | None:
    """Return the run or checkpoint whose settings and weights are used; None for anything else.

    `checkpoint` is `best`, `last`, the step of a checkpoint of the run, or a checkpoint's folder.
    A run stands for its last checkpoint. Raise `ConfigError` for a folder that only contains runs.
    """
    run = None if name is None else find_run(name)
    if run is None and name is not None:
        if runs_in(Path(name).expanduser()):
            raise not_a_run(name)
        refuse_missing_run(name)
    folder = Path(checkpoint)
    if run is not None and checkpoint != "last":
        store = CheckpointStore(RunFolder(run_containing(run)).checkpoints)
        if checkpoint == "best" and not is_checkpoint(run) and (best := store.best) is not None:
            return store.path(best.step)
        if checkpoint.isdecimal():
            folder = store.path(int(checkpoint))
    if checkpoint in ("best", "last"):
        return run
    source = find_run(folder)
    if source is None:
        raise ConfigError(
            f"--checkpoint got {checkpoint!r}, expected best, last, the step of a checkpoint, or "
            "its folder, for example runs/mine/checkpoints/step-00000010"
        )
    return source


def require_run(name: str, checkpoint: str = "last") -> Path:
    """Return the same as `find_source`; raise `ConfigError` for what is not a run."""
    source = find_source(name, checkpoint)
    if source is None:
        raise not_a_run(name)
    return source


def metrics_file(name: str | Path) -> Path:
    """Return `metrics.jsonl` of a run, given its folder, a checkpoint in it, or the file."""
    path = Path(name).expanduser()
    file = RunFolder(run_containing(path)).metrics_file if path.is_dir() else path
    if file.is_file() and file.name == "metrics.jsonl":
        return file
    if is_run(path) or is_checkpoint(path):
        raise ConfigError(f"{path} has no metrics.jsonl: no step of this run was finished yet")
    raise not_a_run(name)


def refuse_missing_run(name: str | Path) -> None:
    """Raise `ConfigError` for a name that can only be meant as a run, and is none: `runs/typo`."""
    path = Path(name).expanduser()
    is_near_runs = path.parent.name == "runs" or (len(path.parts) > 1 and runs_in(path.parent))
    if is_near_runs and ":" not in str(name) and not path.suffix and not path.exists():
        raise not_a_run(name)


def not_a_run(name: str | Path) -> ConfigError:
    """Return an error that says what the name is instead of a run, and suggests runs."""
    path = Path(name).expanduser()
    if inner := ", ".join(map(str, runs_in(path)[:5])):
        return ConfigError(f"{name} is not a run, it contains runs. Name one of them: {inner}")
    problem = f"{name} is not a run"
    if str(name) in ("tiny", "smollm2-135m") or (path / "config.json").is_file():
        problem = f"{name} is a model"
    elif not path.exists():
        problem = f"there is no run {name}"
    hint = "Start one with: turnwise train"
    for folder in (Path("runs"), path.parent):
        if runs := ", ".join(map(str, runs_in(folder)[:5])):
            hint = f"Runs in {folder}: {runs}"
    return ConfigError(f"{problem}, expected the folder of a run, or of a checkpoint. {hint}")


def runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder, newest first."""
    try:
        runs = [path for path in folder.iterdir() if is_run(path)]
        return sorted(runs, key=lambda path: (-path.stat().st_mtime, path.name))
    except OSError:  # no such folder, or one that may not be read
        return []
