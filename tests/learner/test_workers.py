"""Several learners with a part of the batch each make the step of the whole."""

import dataclasses
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import turnwise
from learner.episodes import (
    ALL_TERMS,
    double_model,
    largest_difference,
    random_batch,
    weights,
    with_targets,
)
from turnwise.learner import Learner
from turnwise.learner.workers import SingleProcess


class Meeting:
    """Where threads bring their numbers together."""

    def __init__(self, num_workers):
        self.barrier = threading.Barrier(num_workers, timeout=120)
        self.slots = [None] * num_workers

    def exchange(self, rank, value):
        self.slots[rank] = value
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found


class ThreadWorkers(SingleProcess):
    splits_batch = True

    def __init__(self, meeting, rank):
        self.meeting, self.rank = meeting, rank
        self.num_workers = len(meeting.slots)

    def gather(self, own):
        return self.meeting.exchange(self.rank, own)

    def all_reduce(self, tensors):
        for tensor in tensors:
            found = self.meeting.exchange(self.rank, tensor.clone())
            tensor.copy_(torch.stack(found).sum(0))

    def maximum(self, number):
        return max(self.meeting.exchange(self.rank, number))


def together(options, parts):
    """Update a copy of the model in each of some threads; all learners."""
    meeting = Meeting(len(parts))
    learners = [
        Learner(double_model(), options, workers=ThreadWorkers(meeting, rank))
        for rank in range(len(parts))
    ]
    metrics = [None] * len(parts)

    def run(rank):
        metrics[rank] = learners[rank].update(parts[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in metrics
    return learners, metrics


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_two_workers_make_the_step_of_one(mode):
    options = dataclasses.replace(ALL_TERMS, loss_agg_mode=mode, update_epochs=2)
    alone = Learner(double_model(), options)
    batch = with_targets(random_batch(7), alone)
    expected = alone.update(batch)
    learners, metrics = together(
        options, [batch.select(torch.arange(5)), batch.select(torch.tensor([6, 5]))]
    )
    for learner, told in zip(learners, metrics, strict=True):
        assert largest_difference(weights(learner.model), weights(alone.model)) < 1e-6
        assert told["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-6)


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("loss", ["ppo", "kl_cov"])
def test_every_worker_reports_the_metrics_of_the_whole_batch(is_exact, loss):
    """Means by their tokens, largest values over all, shares from sums: as one learner has them."""
    picking = {"kl_cov_ratio": 0.2} if loss == "kl_cov" else {}
    options = dataclasses.replace(ALL_TERMS, policy_loss=loss, policy_loss_options=picking)
    alone = Learner(double_model(), options)
    batch = with_targets(random_batch(7), alone)
    batch.sampler_is_exact = is_exact
    parts = [batch.select(torch.arange(5)), batch.select(torch.tensor([5, 6]))]
    expected = alone.update(batch)
    learners, metrics = together(options, parts)
    assert {"gap_max", "explained_variance"} <= set(expected)
    assert is_exact or {"is_mean", "is_max", "is_truncated", "is_ess"} <= set(expected)
    for told in metrics:
        assert told == pytest.approx(expected, rel=1e-6, abs=1e-9)
    for learner in learners:
        assert largest_difference(weights(learner.model), weights(alone.model)) < 1e-6


def test_a_worker_with_fewer_episodes_takes_part_in_every_step():
    options = dataclasses.replace(ALL_TERMS, mini_batch_size=2, target_kl=100.0)
    batch = with_targets(random_batch(7), Learner(double_model()))
    learners, metrics = together(
        options, [batch.select(torch.arange(6)), batch.select(torch.tensor([6]))]
    )
    assert [told["num_steps"] for told in metrics] == [3, 3]
    assert largest_difference(*(weights(learner.model) for learner in learners)) == 0.0


def test_what_is_not_finite_at_one_worker_stops_the_step_of_all():
    batch = with_targets(random_batch(6), Learner(double_model()))
    bad = batch.select(torch.arange(3))
    bad.advantages = torch.full_like(bad.advantages, torch.nan)
    learners, metrics = together(ALL_TERMS, [bad, batch.select(torch.arange(3, 6))])
    assert [told["num_skipped_steps"] for told in metrics] == [1, 1]
    for learner in learners:
        assert largest_difference(weights(learner.model), weights(double_model())) == 0.0


PROCESS = """
import sys, torch
from turnwise.learner.workers import SingleProcess, current_workers
assert type(current_workers(torch.device("cpu"))) is SingleProcess
rank, store = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
workers = current_workers(torch.device("cpu"))
tensor = torch.full((3,), rank + 1.0)
workers.all_reduce([tensor])
assert tensor.tolist() == [3.0] * 3
assert workers.maximum(rank * 5.0) == 5.0
assert workers.total(1.0, rank) == [2.0, 1.0]
assert workers.gather((rank, torch.tensor(rank))) == [(0, torch.tensor(0)), (1, torch.tensor(1))]
assert workers.rank == rank and workers.splits_batch
torch.distributed.destroy_process_group()
print("fine")
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_real_processes_meet(tmp_path):
    source = str(Path(turnwise.__file__).parents[1])
    command = [sys.executable, "-c", PROCESS]
    children = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            env={"PYTHONPATH": source, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for child in children:
        output, _ = child.communicate(timeout=120)
        assert output.strip().endswith("fine"), output
