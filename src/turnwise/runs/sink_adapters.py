"""One class per sink; each imports its package when it is created.

A resumed run does not log steps again that a sink already has; a small file in the run folder has
the last one. TensorBoard instead hides the events after the step from which the run resumed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from turnwise.errors import import_extra
from turnwise.runs.plain_json import plain_json

_PROJECT = "turnwise"
_MOST_PARAMS = 100  # per request, MLflow's limit
_OTHER_MARKS = re.compile(r"[^\w.\- :/]")  # not allowed in MLflow's names


class Sink(Protocol):
    """A receiver of metrics. All calls after the constructor come from one thread."""

    def __init__(self, run_folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        """Import the package, without opening anything."""

    def open(self, first_step: int) -> None:
        """Open the sink before the first, or the first resumed, step."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in `tensorboard/` of the run folder."""

    def __init__(self, run_folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        import_extra("tensorboard", "tensorboard")
        self._module = importlib.import_module("torch.utils.tensorboard")
        self._folder = run_folder / "tensorboard"

    def open(self, first_step: int) -> None:
        self._writer = self._module.SummaryWriter(str(self._folder), purge_step=first_step)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases in `wandb/` of the run folder.

    Online if the user is logged in, else offline for a later `wandb sync`. It never prompts.
    """

    def __init__(self, run_folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        self._wandb: Any = import_extra("wandb", "wandb")
        self._folder, self._name, self._config = run_folder, run_name, config
        self._memory = _Memory(run_folder, "wandb")

    def open(self, first_step: int) -> None:
        wandb = self._wandb
        mode = os.environ.get("WANDB_MODE")
        if mode is None:
            mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            dir=str(self._folder),
            id=self._memory.remember_id(lambda: uuid.uuid4().hex[:12]),
            name=self._name,
            config=plain_json(self._config),
            mode=mode,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._memory.is_new(step):
            self._run.log(dict(numbers), step=step)
            self._memory.remember_step(step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, in a database in `mlflow/` of the run folder or at MLFLOW_TRACKING_URI."""

    def __init__(self, run_folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        self._mlflow: Any = import_extra("mlflow", "mlflow")
        self._folder, self._name, self._config = run_folder / "mlflow", run_name, config
        self._memory = _Memory(run_folder, "mlflow")

    def open(self, first_step: int) -> None:
        place = os.environ.get("MLFLOW_TRACKING_URI")
        if place is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            place = f"sqlite:///{(self._folder / 'mlflow.db').absolute()}"
        self._client = self._mlflow.MlflowClient(tracking_uri=place)
        self._run_id = self._memory.remember_id(self._create_run)

    def _create_run(self) -> str:
        client = self._client
        experiment = client.get_experiment_by_name(_PROJECT)
        if experiment is None:
            artifacts = (self._folder / "artifacts").absolute().as_uri()
            number = client.create_experiment(_PROJECT, artifact_location=artifacts)
        else:
            number = experiment.experiment_id
        run_id = str(client.create_run(number, run_name=self._name).info.run_id)
        settings = [
            self._mlflow.entities.Param(name, str(value)[:500])
            for name, value in _flat(plain_json(self._config))
        ]
        for start in range(0, len(settings), _MOST_PARAMS):
            client.log_batch(run_id, params=settings[start : start + _MOST_PARAMS])
        return run_id

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if not self._memory.is_new(step):
            return
        now = int(1000 * time.time())
        metric = self._mlflow.entities.Metric
        named = {_OTHER_MARKS.sub("_", name): value for name, value in numbers.items()}
        metrics = [metric(name, value, now, step) for name, value in named.items()]
        self._client.log_batch(self._run_id, metrics=metrics)
        self._memory.remember_step(step)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


class Trackio:
    """A run of trackio, where `trackio show` finds it: in the user's cache, or in TRACKIO_DIR."""

    def __init__(self, run_folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        self._trackio: Any = import_extra("trackio", "trackio")
        self._name, self._config = run_name, config
        self._memory = _Memory(run_folder, "trackio")

    def open(self, first_step: int) -> None:
        # Runs in other folders may have the same name, and would be resumed.
        name = self._memory.remember_id(lambda: f"{self._name}-{uuid.uuid4().hex[:6]}")
        self._run = self._trackio.init(
            project=_PROJECT,
            name=name,
            config=plain_json(self._config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._memory.is_new(step):
            self._run.log(dict(numbers), step=step)
            self._memory.remember_step(step)

    def close(self) -> None:
        self._run.finish()


class _Memory:
    """The id of a run in a sink and its last step, kept for a resume."""

    def __init__(self, run_folder: Path, sink: str) -> None:
        self._path = run_folder / f".{sink}.json"
        self._data: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            self._data = json.loads(self._path.read_bytes())

    def remember_id(self, make: Callable[[], str]) -> str:
        if "id" not in self._data:
            self._write(id=make())
        return str(self._data["id"])

    def is_new(self, step: int) -> bool:
        return step > int(self._data.get("step", -1))

    def remember_step(self, step: int) -> None:
        self._write(step=step)

    def _write(self, **values: Any) -> None:
        self._data |= values
        draft = self._path.with_name(f"{self._path.name}.draft")
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(self._data))
        draft.replace(self._path)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """
    >>> dict(_flat({"training": {"gamma": 0.9}, "seed": 1}))
    {'training.gamma': 0.9, 'seed': 1}
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
