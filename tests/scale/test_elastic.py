"""A real Ray cluster whose machines come and go, and a worker that hangs."""

import os
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from scale.rayed import TESTS, train
from scale.test_ray import assert_same_training, seeds_of, tokens_and_versions
from trainer.runs import Listener, metrics_of
from trainer.worlds import Memory
from turnwise.errors import ConfigError, import_extra
from turnwise.scale.ray import episode_pool
from turnwise.scale.ray.cluster import exported_python_path

ray = import_extra("ray", "ray")

NODE = {"num_cpus": 2, "object_store_memory": 128 * 2**20}
ELASTIC = ("ray.use_ray=true", "ray.num_actors=3", "ray.min_actors=1", "training.steps_per_epoch=8")
SMALL = ("training.batch_size=2", "training.mini_batch_size=2")


@pytest.fixture
def cluster(monkeypatch):
    """A machine with room for a learner and an episode worker; tests add others."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    made = import_extra("ray.cluster_utils", "ray").Cluster()
    # A short path: sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as own:
        monkeypatch.setenv("RAY_TMPDIR", own)
        os.mkdir(f"{own}/ray")
        try:
            with exported_python_path():
                made.add_node(**NODE, include_dashboard=False)
            ray.init(address=made.address, log_to_driver=False)
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


class Roaming(Memory):
    """Notes on which machine it is played; on one that is about to leave it waits for that."""

    def step(self, action):
        if str(os.getpid()) != TESTS:
            notes = Path(self.config["notes"])
            node = ray.get_runtime_context().get_node_id()
            with open(notes / "played", "a") as file:
                file.write(f"{node}\n")
            if (notes / f"leaves-{node}").exists():
                (notes / "is-waiting").touch()
                time.sleep(120)
        return super().step(action)


class ComesAndGoes(Listener):
    """Adds a machine after the first step; after the second it leaves, amid its episodes."""

    def __init__(self, cluster, notes):
        super().__init__()
        self.cluster, self.notes = cluster, notes
        self.trainers, self.sizes, self.leaving = [], [], None

    def step(self, metrics):
        super().step(metrics)
        pool = self.trainers[0].components.engine.pool
        if metrics["step"] == 1:
            with exported_python_path():
                self.node = self.cluster.add_node(**NODE)
            wait_until(lambda: pool.num_workers == 3)
        if metrics["step"] == 2:
            (self.notes / f"leaves-{self.node.node_id}").touch()
            self.leaving = threading.Thread(target=self.leave)
            self.leaving.start()
        self.sizes.append(pool.num_workers)

    def leave(self):
        wait_until((self.notes / "is-waiting").exists)
        self.cluster.remove_node(self.node)


def wait_until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("staleness", [0, 2])
def test_machines_come_and_go_and_nothing_is_lost_or_counted_twice(tmp_path, cluster, staleness):
    alone = train(tmp_path / "alone", Memory, *ELASTIC, "ray.use_ray=false")
    listener = ComesAndGoes(cluster, tmp_path)
    settings = (
        *(*ELASTIC, f"training.max_staleness={staleness}", f"environment.params.notes={tmp_path}"),
        "ray.max_failures=1",  # two workers leave with their machine
    )
    run = train(
        tmp_path / "run", Roaming, *settings, before=listener.trainers.append, reporter=listener
    )
    listener.leaving.join()
    assert listener.sizes[1] == 3
    assert listener.sizes[-1] == 1
    assert [m["num_episodes"] for m in metrics_of(run[2])] == [6] * 8
    assert seeds_of(run[2]) == seeds_of(alone[2])
    if staleness == 0:
        assert_same_training(run, alone)
        assert tokens_and_versions(run[2]) == tokens_and_versions(alone[2])
    else:
        assert max(m.get("weights_behind", 0) for m in run[0]) <= staleness
    played = Counter((tmp_path / "played").read_text().split())
    assert len(played) == 2
    # Both of its workers get a share of a synchronous step; else one may leave before it plays.
    assert played[listener.node.node_id] >= (2 if staleness == 0 else 1)
    log = (run[2] / "log.txt").read_text()
    assert log.count(" is ready") == 3
    assert log.count(" was lost and is replaced: ") == 2


class Hanging(Memory):
    """Stops the first worker process that plays it."""

    def step(self, action):
        notes = Path(self.config["notes"])
        if str(os.getpid()) != TESTS:
            with suppress(FileExistsError), open(notes / "stopped", "x") as file:
                file.write(str(os.getpid()))
                file.close()
                os.kill(os.getpid(), signal.SIGSTOP)
        return super().step(action)


def test_a_worker_that_hangs_holds_up_neither_the_driver_nor_the_others(
    tmp_path, cluster, monkeypatch, caplog
):
    """Updates go on, and the others play with their weights, long before it counts as lost."""
    with exported_python_path():
        cluster.add_node(**NODE)

    monkeypatch.setattr(episode_pool, "SECONDS_BETWEEN_CALLS", 0.5)

    class Clock(Listener):
        times = ()

        def step(self, metrics):
            super().step(metrics)
            self.times = (*self.times, time.time())
            # Only now: starting takes longer.
            monkeypatch.setattr(episode_pool, "SECONDS_TO_ANSWER", 10.0)

    clock = Clock()
    settings = (
        *ELASTIC,
        "ray.num_actors=2",
        "ray.min_actors=2",
        *SMALL,
        "training.max_staleness=4",
    )
    try:
        _, _, folder = train(
            tmp_path / "run",
            Hanging,
            *(*settings, f"environment.params.notes={tmp_path}"),
            reporter=clock,
        )
    finally:
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(int((tmp_path / "stopped").read_text()), signal.SIGKILL)
    stopped = (tmp_path / "stopped").stat().st_mtime
    (lost,) = [r.created for r in caplog.records if " was lost and is replaced" in r.getMessage()]
    assert len(clock.times) == 8
    in_between = [step for step, at in enumerate(clock.times) if stopped < at < lost]
    assert len(in_between) >= 2
    sampled = tokens_and_versions(folder)
    versions = {
        version
        for step in in_between
        for _, turns in list(sampled.values())[step]
        for _, version in turns
    }
    assert len(versions) > 1, "new weights must reach the others"
    alone = train(tmp_path / "alone", Memory, *settings, "ray.use_ray=false")
    assert seeds_of(folder) == seeds_of(alone[2])


def test_more_workers_for_the_start_than_in_all_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"ray\.min_actors got 4, expected at most .* is 3"):
        train(tmp_path, Memory, *ELASTIC, "ray.min_actors=4")
