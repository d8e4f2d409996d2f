"""`Cluster`: an existing Ray cluster, or one that is started for the run; and lost workers."""

import atexit
import contextlib
import logging
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from turnwise.config import RayConfig
from turnwise.errors import ConfigError, TrainingStopped, TurnwiseError, import_extra
from turnwise.user_code import imported_files

ray = import_extra("ray", "ray")

_LOG = logging.getLogger("turnwise")

SECONDS_TO_ANSWER = 300.0
"""A worker that does not answer for so long counts as lost; starting may take minutes."""
SECONDS_BETWEEN_CALLS = 10.0
"""The interval between two liveness checks of a worker."""
_PLACEMENT_SECONDS = 120.0
_REMOVE_SECONDS = 5.0
_SMALLEST_STORE = 256 * 2**20
_COPIES = 12
"""Copies of the weights for which the object store has space: two versions with optimizer state."""


def put_for_workers(value: Any) -> Any:
    """Put what workers need into the object store; `ConfigError` for what cannot be sent."""
    try:
        return ray.put(value)
    except TypeError as error:  # its message is the log of Ray's search
        raise ConfigError(
            f"your code cannot be sent to the workers of Ray: {error.__cause__ or error}. Create "
            "locks, clients and open files in the environment's __init__ or in the function that "
            "uses them, not as global variables."
        ) from error


class Cluster:
    """Owns the placement group of the workers that a run starts with.

    `close` releases it, and may be called twice.
    """

    def __init__(self, settings: RayConfig, weight_bytes: int) -> None:
        self._settings = settings
        self.num_learners = settings.num_learners
        self.num_reserved = settings.min_actors or settings.num_actors
        """Episode workers that a run starts with. Further ones are placed when there is room."""
        self._folder: str | None = None
        """Ray's sockets and logs, on a cluster that was started here."""
        self._group: Any = None
        self._is_ours = not ray.is_initialized()
        for module in imported_files():  # workers receive the code: they import no user file
            ray.cloudpickle.register_pickle_by_value(module)
        # For a program that does not call the trainer's `cleanup`.
        atexit.register(self.close)
        try:
            if self._is_ours:
                self._start(weight_bytes)
            self._group = self._reserve()
        except BaseException:  # Ctrl-C too: no cluster is left behind
            self.close()
            raise

    def actor_options(self, number: int) -> dict[str, Any]:
        """Return the Ray options of an actor: the learners are numbered first, then the episode
        workers. Those that a run does not start with are placed anywhere."""
        strategy: Any = "DEFAULT"
        if number < self.num_learners + self.num_reserved:
            strategies = import_extra("ray.util.scheduling_strategies", "ray")
            strategy = strategies.PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=number
            )
        return {
            "num_cpus": 1,
            "num_gpus": self._settings.gpus_per_worker,
            "max_restarts": 0,  # Ray must not restart it: we do
            "scheduling_strategy": strategy,
        }

    def close(self) -> None:
        atexit.unregister(self.close)
        group, self._group = self._group, None
        if group is not None and ray.is_initialized():
            ray.util.remove_placement_group(group)
        if not self._is_ours:
            return
        self._is_ours = False
        ray.shutdown()
        deadline = time.monotonic() + _REMOVE_SECONDS
        # Processes that are about to end may still be writing into it.
        while self._folder is not None and os.path.exists(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)

    def _start(self, weight_bytes: int) -> None:
        address = self._settings.address or os.environ.get("RAY_ADDRESS")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is not None:
            if address.startswith("ray://"):
                raise ConfigError(
                    f"ray.address got {address!r}: Ray's client cannot stream episodes one by one. "
                    "Run the script on the cluster (`ray job submit -- python train.py`) with auto."
                )
            try:
                ray.init(address=address, **quiet)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"ray.address got {address!r}, and that cluster cannot be used: {error}. Start "
                    "one with `ray start --head`, or set ray.address to null. If it asks for a "
                    "token: RAY_AUTH_TOKEN must be that of the machine that started it."
                ) from error
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # The workers do all the work: on a cluster of our own nothing has priority over them.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # A short path: those of the sockets in it must fit into 107 characters.
        self._folder = tempfile.mkdtemp(prefix="turnwise-ray-", dir="/tmp")
        with exported_python_path():
            ray.init(
                address="local",
                # Workers mostly wait: there may be more of them than cores.
                num_cpus=max(self._settings.num_actors + self.num_learners, os.cpu_count() or 1),
                object_store_memory=max(_SMALLEST_STORE, _COPIES * weight_bytes),
                include_dashboard=False,
                _temp_dir=self._folder,
                **quiet,
            )

    def _reserve(self) -> Any:
        """Reserve a bundle for each worker of the start, all or none: a part would wait."""
        gpus = self._settings.gpus_per_worker
        resources = {"CPU": 1.0, **({"GPU": gpus} if gpus else {})}
        number = self.num_learners + self.num_reserved
        group = ray.util.placement_group([resources] * number, strategy="PACK")
        try:
            ray.get(group.ready(), timeout=_PLACEMENT_SECONDS)
        except ray.exceptions.GetTimeoutError:
            ray.util.remove_placement_group(group)
            there = ray.cluster_resources()
            raise ConfigError(
                f"the cluster has too few free resources: {number} workers need {number} CPUs and "
                f"{number * gpus:g} GPUs, and it has {there.get('CPU', 0):g} CPUs and "
                f"{there.get('GPU', 0):g} GPUs, some of which may be taken. Lower ray.num_actors, "
                "ray.num_learners or ray.gpus_per_worker, or set ray.min_actors."
            ) from None
        return group


@contextlib.contextmanager
def exported_python_path() -> Iterator[None]:
    """Let processes that are started inside the block import what this one can import."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


# ---- lost workers ----


class WorkerLost(Exception):
    """A worker process is gone, or does not answer."""


class Failures:
    """Counts lost workers; the count restarts when work was completed in between."""

    def __init__(self, most: int) -> None:
        self._max_in_a_row = most
        self._num_in_a_row, self._last = 0, -math.inf

    def record(self, who: str, why: BaseException, requested: float = math.inf) -> None:
        """Count a lost worker; raises `TrainingStopped` after too many.

        `requested` is when it was requested. Those that were there before the last one was lost do
        not count: a machine that leaves takes several with it.
        """
        reason = brief(why)
        _LOG.warning("%s was lost and is replaced: %s", who, reason)
        if requested < self._last:
            return
        self._last = time.monotonic()
        self._num_in_a_row += 1
        if self._num_in_a_row > self._max_in_a_row:
            raise TrainingStopped(
                f"{self._num_in_a_row} workers were lost in one step, and ray.max_failures is "
                f"{self._max_in_a_row}. The last one was {who}: {reason}"
            )

    def reset(self) -> None:
        self._num_in_a_row, self._last = 0, -math.inf


def is_loss(error: BaseException) -> bool:
    """Return whether an error means that a worker is gone, not that its work failed."""
    kinds = ray.exceptions
    lost = (WorkerLost, kinds.RayActorError, kinds.WorkerCrashedError, kinds.ObjectLostError)
    return isinstance(error, lost)


def own_error(error: BaseException) -> BaseException:
    """Return the error that a worker raised, without Ray's wrapper."""
    cause = getattr(error, "cause", None)
    if not isinstance(cause, BaseException):
        return error
    if not isinstance(cause, TurnwiseError):
        cause.add_note(f"It was raised in a worker:\n{getattr(error, 'traceback_str', '')}")
    return cause


def brief(error: BaseException) -> str:
    """Return the first lines of an error: Ray's messages are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:3])[:300] or type(error).__name__
