"""The trainer's process on Ray: it has no weights, and checkpoints pass through it in shards."""

import contextlib
import dataclasses
import functools
import json
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scale.rayed import ON_RAY, largest_difference, train
from scale.test_parts import write_large_model
from scale.test_ray import assert_same_training, saved_model
from trainer.worlds import Memory, small_config, small_model
from turnwise.algo.choose import Algorithm
from turnwise.learner import LearnerOptions, PPOBatch
from turnwise.learner.build import make_policy
from turnwise.learner.lora import has_adapters
from turnwise.models.empty import is_empty
from turnwise.runs.checkpoints import CheckpointStore, save_checkpoint_to
from turnwise.runs.run_folder import RunFolder
from turnwise.scale.ray.cluster import Cluster, Failures
from turnwise.scale.ray.learner import LearnerGroup, RemoteLearner
from turnwise.scale.ray.transfer import ModelSource
from turnwise.trainer.schedule import Progress
from turnwise.trainer.state import (
    has_same_weights,
    load_configured_model_in_parts,
    read_state,
    write_state,
)

FROM_FILES = {"model": None, "tokenizer": None}


def checkpoint_of(folder, name="weights.safetensors"):
    return CheckpointStore(RunFolder(folder).checkpoints).newest().file(name)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    "settings",
    [
        # The entropy gives a gradient where all rewards are 0: Adam would make one of rounding.
        ("training.critic=separate", "training.kl_loss_coef=0.1", "training.entropy_coef=0.1"),
        ("training.lora_rank=2", "training.kl_loss_coef=0.1"),
    ],
    ids=["separate critic and reference", "adapters"],
)
def test_a_run_is_that_of_one_process_and_its_driver_has_no_weights(tmp_path, model, settings):
    models = []

    def before(trainer):
        models.append(trainer.components.learner.model)
        assert is_empty(models[0])
        assert has_adapters(models[0].policy) == ("training.lora_rank=2" in settings)

    alone = train(tmp_path / "alone", Memory, model, *settings, **FROM_FILES)
    run = train(tmp_path / "run", Memory, model, *settings, *ON_RAY, before=before, **FROM_FILES)
    assert is_empty(models[0])
    assert_same_training(run, alone)
    for name in ("weights.safetensors", "learner.safetensors"):
        ours, theirs = (load_file(checkpoint_of(folder, name)) for folder in (run[2], alone[2]))
        assert largest_difference(ours, theirs) < 1e-4
    facts, expected = (
        json.loads((folder / "run.json").read_text())["model"] for folder in (run[2], alone[2])
    )
    assert facts == expected


def test_a_model_that_was_passed_has_the_trained_weights(tmp_path):
    model, tokenizer = small_model()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    run = train(tmp_path, Memory, "ray.use_ray=true", model=model, tokenizer=tokenizer)
    saved = load_file(checkpoint_of(run[2]))
    after = dict(model.named_parameters())
    for name, tensor in after.items():
        assert torch.equal(tensor, saved[f"policy.{name}"])
    assert largest_difference(before, dict(model.state_dict())) > 0


def own_memory():
    """The bytes that are this process's alone."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = [line.split()[1] for line in lines if line.startswith("RssAnon")]
    return 1024 * int(kilobytes)


@contextlib.contextmanager
def growth():
    """A list that gets how many bytes more this process had at most, after the block."""
    before, found, is_over = own_memory(), [], threading.Event()

    def look():
        most = before
        while not is_over.wait(0.001):
            most = max(most, own_memory())
        found.append(most - before)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        is_over.set()
        looking.join()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_saving_takes_the_memory_of_a_tensor_and_loading_that_of_a_shard(tmp_path):
    write_large_model(tmp_path / "large")
    size = sum(path.stat().st_size for path in (tmp_path / "large").glob("*.safetensors"))
    config = small_config(
        tmp_path, *(*ON_RAY, f"model.local_path={tmp_path / 'large'}", "model.device=cpu")
    )
    algorithm = Algorithm.from_settings(config.training)
    ids = torch.arange(16).repeat(2, 1)
    cluster = Cluster(config.ray, size)
    try:
        group = LearnerGroup(cluster, config, ModelSource(config), algorithm, Failures(0))
        model = make_policy(config, load_configured_model_in_parts(config), algorithm)
        learner = RemoteLearner(model, LearnerOptions.from_config(config), group=group)
        learner.imitate(PPOBatch(ids, ids > 8))
        progress = {**dataclasses.asdict(Progress()), "policy/": {}}
        learners = {"": learner}
        save = functools.partial(write_state, learners=learners, config=config, progress=progress)
        save_checkpoint_to(tmp_path / "first", save, 1)  # imports what is needed
        learner.imitate(PPOBatch(ids, ids > 8))
        with growth() as of_saving:
            saved = save_checkpoint_to(tmp_path / "second", save, 2)
        assert has_same_weights(saved, learner)
        learner.imitate(PPOBatch(ids, ids > 8))
        assert not has_same_weights(saved, learner)
        with growth() as of_loading:
            read_state(saved, learners)
        assert has_same_weights(saved, learner)
        group.close()
    finally:
        cluster.close()
    state = sum(saved.file(name).stat().st_size for name in saved.files)
    assert state > 2.9 * size > 145e6  # weights and two moments
    print(
        f"{size / 1e6:.0f} MB: saving {of_saving[0] / 1e6:.0f}, loading {of_loading[0] / 1e6:.0f}"
    )
    assert of_saving[0] < 0.25 * size
    assert of_loading[0] < 0.6 * state
