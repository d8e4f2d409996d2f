"""The cluster: one that is there, or one of our own for as long as the run lasts."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from turnwise.config import RayConfig
from turnwise.errors import ConfigError, import_extra
from turnwise.scale.ray.session_folder import SessionFolder
from turnwise.user_code import imported_files

ray = import_extra("ray", "ray")

_SECONDS_FOR_ROOM = 120.0
_SMALLEST_STORE = 256 * 2**20
_COPIES = 12
"""Of the weights, in the object store: weights, moments and masters of two versions, and room."""


class Cluster:
    """Holds the workers' places. `close` gives back what was taken, and may be called twice."""

    def __init__(self, settings: RayConfig, weight_bytes: int) -> None:
        self._settings = settings
        self._folder: SessionFolder | None = None
        self._group: Any = None
        self._is_ours = not ray.is_initialized()
        for module in imported_files():  # workers are sent the code: they import no user's file
            ray.cloudpickle.register_pickle_by_value(module)
        # For a program that does not say when it is done with the trainer.
        atexit.register(self.close)
        try:
            if self._is_ours:
                self._start(weight_bytes)
            self._group = self._take_places()
        except BaseException:
            self.close()
            raise

    @property
    def num_nodes(self) -> int:
        """Machines that are alive."""
        return sum(bool(node["Alive"]) for node in ray.nodes())

    def options(self, place: int) -> dict[str, Any]:
        """How the actor at one of the places is started. Ray is not to restart it: we do."""
        strategy = import_extra("ray.util.scheduling_strategies", "ray")
        return {
            "num_cpus": 1,
            "num_gpus": self._settings.gpus_per_worker,
            "max_restarts": 0,
            "scheduling_strategy": strategy.PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=place
            ),
        }

    def close(self) -> None:
        atexit.unregister(self.close)
        group, self._group = self._group, None
        if group is not None and ray.is_initialized():
            ray.util.remove_placement_group(group)
        if self._is_ours:
            self._is_ours = False
            ray.shutdown()
            if self._folder is not None:
                self._folder.remove()

    @property
    def _num_places(self) -> int:
        return self._settings.num_actors + self._settings.num_learners

    def _start(self, weight_bytes: int) -> None:
        address = self._settings.address or os.environ.get("RAY_ADDRESS")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is not None and address.startswith("ray://"):
            raise ConfigError(
                f"ray.address got {address!r}: Ray's client cannot hand over episodes one by one. "
                "Run the script on the cluster (`ray job submit -- python train.py`) with auto."
            )
        if address is not None:
            try:
                ray.init(address=address, **quiet)
            except (ConnectionError, ValueError, RuntimeError) as error:
                fix = (
                    "It asks for a token: RAY_AUTH_TOKEN or ~/.ray/auth_token must be the one of "
                    "the machine that started it."
                    if "auth" in str(error).lower()
                    else "Start one with `ray start --head`, or leave ray.address empty for one of "
                    "our own."
                )
                raise ConfigError(
                    f"ray.address got {address!r}, and that cluster cannot be used: {error}. {fix}"
                ) from error
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # The workers do all of the work: on a machine of one's own nothing goes before them.
        os.environ.setdefault("RAY_worker_niceness", "0")
        self._folder = SessionFolder()
        with importable_there():
            ray.init(
                address="local",
                # Places are for waiting as well as for computing: more than cores is fine.
                num_cpus=max(self._num_places, os.cpu_count() or 1),
                object_store_memory=max(_SMALLEST_STORE, _COPIES * weight_bytes),
                include_dashboard=False,
                _temp_dir=str(self._folder.path),
                **quiet,
            )

    def _take_places(self) -> Any:
        """One place a worker, all of them or none: half a crew would wait for ever."""
        gpus = self._settings.gpus_per_worker
        bundle = {"CPU": 1.0, **({"GPU": gpus} if gpus else {})}
        number = self._num_places
        group = ray.util.placement_group([bundle] * number, strategy="PACK")
        try:
            ray.get(group.ready(), timeout=_SECONDS_FOR_ROOM)
        except ray.exceptions.GetTimeoutError:
            ray.util.remove_placement_group(group)
            there = ray.cluster_resources()
            raise ConfigError(
                f"the cluster has no room: {number} workers need {number} CPUs and "
                f"{number * gpus:g} GPUs, and it has {there.get('CPU', 0):g} CPUs and "
                f"{there.get('GPU', 0):g} GPUs, some of which may be taken. Lower ray.num_actors, "
                "ray.num_learners or ray.gpus_per_worker."
            ) from None
        return group


@contextlib.contextmanager
def importable_there() -> Iterator[None]:
    """Processes that are started meanwhile find the modules that this one finds."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
