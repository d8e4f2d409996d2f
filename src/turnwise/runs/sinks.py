"""Sends metrics to TensorBoard, Weights & Biases, MLflow, trackio, or a class of one's own.

None needs a login, and none can stop or slow down a run: each works in a thread of its own, and one
that fails is logged once and dropped. A resumed run does not log steps again that a sink already
has; a small file in the run folder has the last one. TensorBoard instead hides the events after the
step from which the run resumed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from turnwise.errors import ConfigError, TurnwiseError, describe_error, did_you_mean, import_extra
from turnwise.runs.plain_json import plain_json
from turnwise.user_code import import_object, names_code
from turnwise.whole_files import write_whole

_PROJECT = "turnwise"
_WANDB_OPTIONS = ("project", "name", "tags", "entity", "group", "job_type", "notes")
_MOST_PARAMS = 100  # per request, MLflow's limit
_OTHER_MARKS = re.compile(r"[^\w.\- :/]")  # not allowed in MLflow's names
_CLOSE_SECONDS = 8.0  # metrics that are not sent by then are lost
_LOG = logging.getLogger("turnwise")


class Sink(Protocol):
    """A receiver of metrics, made with the run's folder, its name and its settings.

    All calls after the constructor come from one thread.
    """

    def open(self, first_step: int) -> None:
        """Open the sink before the first, or the first resumed, step."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take the metrics of a step."""

    def close(self) -> None:
        """Finish when the run does."""


class _OurSink:
    """A sink that needs a package, and continues its run after a resume.

    A file in the run folder has the id of the run there, and the last step that it got.
    """

    package: ClassVar[str]
    """The package; the extra has the same name."""

    def __init__(self, run_folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        self._module: Any = import_extra(self.package, self.package)
        self._folder, self._name, self._config = run_folder, run_name, config
        self._memory: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            self._memory = json.loads((run_folder / f".{self.package}.json").read_bytes())

    def open(self, first_step: int) -> None:
        if "id" not in self._memory:
            self._remember(id=self._new_id())
        self._run = self._open_run(str(self._memory["id"]))

    def _new_id(self) -> str:
        return uuid.uuid4().hex[:12]

    def _open_run(self, run_id: str) -> Any:
        return run_id

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if step > int(self._memory.get("step", -1)):
            self._send(step, numbers)
            self._remember(step=step)

    def _send(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()

    def _remember(self, **values: Any) -> None:
        self._memory |= values
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._folder / f".{self.package}.json", json.dumps(self._memory).encode())


class TensorBoard(_OurSink):
    """Event files in `tensorboard/` of the run folder."""

    package = "tensorboard"

    def open(self, first_step: int) -> None:
        writers = importlib.import_module("torch.utils.tensorboard")
        folder = str(self._folder / "tensorboard")
        self._run = writers.SummaryWriter(folder, purge_step=first_step)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._run.add_scalar(name, value, step)
        self._run.flush()

    def close(self) -> None:
        self._run.close()


class WandB(_OurSink):
    """A run of Weights & Biases in `wandb/` of the run folder.

    Online if the user is logged in, else offline for a later `wandb sync`. It never prompts.
    """

    package = "wandb"

    def _open_run(self, run_id: str) -> Any:
        wandb = self._module
        mode = os.environ.get("WANDB_MODE")
        if mode is None:
            mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
        chosen = {"project": os.environ.get("WANDB_PROJECT", _PROJECT), "name": self._name}
        return wandb.init(
            **chosen | self._config.get("logging", {}).get("wandb", {}),
            dir=str(self._folder),
            id=run_id,
            config=self._config,
            mode=mode,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )


class Trackio(_OurSink):
    """A run of trackio, where `trackio show` finds it: in the user's cache, or in TRACKIO_DIR."""

    package = "trackio"

    def _new_id(self) -> str:
        # Runs in other folders may have the same name, and would be resumed.
        return f"{self._name}-{uuid.uuid4().hex[:6]}"

    def _open_run(self, run_id: str) -> Any:
        return self._module.init(
            project=_PROJECT,
            name=run_id,
            config=self._config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )


class MLflow(_OurSink):
    """A run of MLflow, in a database in `mlflow/` of the run folder or at MLFLOW_TRACKING_URI."""

    package = "mlflow"

    def open(self, first_step: int) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            folder = (self._folder / "mlflow").absolute()
            folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{folder / 'mlflow.db'}"
        self._client = self._module.MlflowClient(tracking_uri=uri)
        super().open(first_step)

    def _new_id(self) -> str:
        client = self._client
        experiment = client.get_experiment_by_name(_PROJECT)
        if experiment is None:
            artifacts = (self._folder / "mlflow" / "artifacts").absolute().as_uri()
            number = client.create_experiment(_PROJECT, artifact_location=artifacts)
        else:
            number = experiment.experiment_id
        run_id = str(client.create_run(number, run_name=self._name).info.run_id)
        param = self._module.entities.Param
        settings = []
        sections = [("", self._config)]
        for prefix, section in sections:
            for key, value in section.items():
                if isinstance(value, Mapping):
                    sections.append((f"{prefix}{key}.", value))
                else:
                    settings.append(param(f"{prefix}{key}", str(value)[:500]))
        for start in range(0, len(settings), _MOST_PARAMS):
            client.log_batch(run_id, params=settings[start : start + _MOST_PARAMS])
        return run_id

    def _send(self, step: int, numbers: Mapping[str, float]) -> None:
        now, metric = int(1000 * time.time()), self._module.entities.Metric
        named = {_OTHER_MARKS.sub("_", name): value for name, value in numbers.items()}
        metrics = [metric(name, value, now, step) for name, value in named.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


SINKS: Mapping[str, type[_OurSink]] = {
    sink.package: sink for sink in (TensorBoard, WandB, MLflow, Trackio)
}


def check_sinks(names: Sequence[str], wandb: Mapping[str, Any] | None = None) -> None:
    """Raise for unknown sinks, those that are not installed, and unknown options of wandb."""
    for odd in (name for name in wandb or {} if name not in _WANDB_OPTIONS):
        raise ConfigError(f"logging.wandb has no {odd!r}. {did_you_mean(odd, _WANDB_OPTIONS)}")
    for name in names:
        _find_sink(name)


def make_sinks(
    names: Sequence[str], run_folder: Path, run_name: str, config: Mapping[str, Any]
) -> Sinks:
    """Return the sinks of these names; a missing package raises now, not during the run."""
    settings = plain_json(config)
    sinks: dict[str, Sink] = {}
    for name in names:
        try:
            sinks[name] = _find_sink(name)(Path(run_folder), run_name, settings)
        except TurnwiseError:
            raise
        except Exception as error:
            raise ConfigError(
                f"logging.sinks: {name} could not be made: {describe_error(error)}. It is called "
                "with the run's folder, its name and its settings; connect in open()."
            ) from error
    return Sinks(sinks)


def _find_sink(name: str) -> Callable[[Path, str, Any], Sink]:
    if name in SINKS:
        import_extra(name, name)
        return cast("Callable[[Path, str, Any], Sink]", SINKS[name])
    if not names_code(name):
        raise ConfigError(
            f"logging.sinks got {name!r}, which is no sink. {did_you_mean(name, SINKS)} "
            "Your own is written path/to/file.py:Class."
        )
    sink: Callable[[Path, str, Any], Sink] = import_object(name, option="logging.sinks")
    if not all(hasattr(sink, method) for method in ("open", "log", "close")):
        methods = "open(first_step), log(step, numbers) and close()"
        raise ConfigError(f"logging.sinks got {name}, expected a class with {methods}")
    return sink


class Sinks:
    """The sinks of a run."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._workers = [_Worker(name, sink) for name, sink in sinks.items()]

    def log(self, step: int, metrics: Mapping[str, float | int | str | bool]) -> None:
        """Queue the metrics of a step for all sinks, without waiting."""
        numbers = {
            name: float(value)
            for name, value in metrics.items()
            if not isinstance(value, str) and math.isfinite(value) and name != "step"
        }
        for worker in self._workers:
            worker.tasks.put((step, numbers))

    def close(self) -> None:
        """Wait up to 8 seconds until everything is sent; may be called twice."""
        for worker in self._workers:
            worker.tasks.put(None)
        end = time.monotonic() + _CLOSE_SECONDS
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))
            if worker.is_alive():
                what = "%s did not finish in time; its last steps may be missing"
                _LOG.warning(what, worker.name)
        self._workers = []


class _Worker(threading.Thread):
    """The thread of one sink; a daemon, so that a hanging sink does not keep the process alive."""

    def __init__(self, name: str, sink: Sink) -> None:
        super().__init__(name=name, daemon=True)
        self.tasks: queue.SimpleQueue[tuple[int, dict[str, float]] | None] = queue.SimpleQueue()
        self._sink = sink
        self.start()

    def run(self) -> None:
        try:
            if (task := self.tasks.get()) is None:
                return
            self._sink.open(task[0])
            while task is not None:
                self._sink.log(*task)
                task = self.tasks.get()
            self._sink.close()
        except Exception as error:
            what = "%s failed and gets no more metrics: %s. metrics.jsonl has them all."
            _LOG.warning(what, self.name, describe_error(error))
