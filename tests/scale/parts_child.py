"""One of several learners that load a model in parts; run as `parts_child.py RANK WORLD FOLDER`.

Measures the memory that loading takes. Two learners also compare what they have loaded with what
they keep of a model that was loaded whole.
"""

import json
import sys
from pathlib import Path

import torch

from learner.episodes import random_batch, with_targets
from turnwise.config import ConfigStore
from turnwise.learner import Learner, PolicyValueModel, make_learner
from turnwise.learner.sharding import local_shard, local_shards
from turnwise.models import load_model
from turnwise.models.empty import is_empty, load_empty_model
from turnwise.trainer.learning import policy_weights

LARGE, SMALL = "large", "small-qwen2"
CASES = {
    "in one file": ("small-llama", {}, "float32"),
    "tied, in several files": ("small-gemma", {"critic": "separate"}, "float32"),
    "rounded, with masters": ("small-qwen2", {}, "bfloat16"),
    "widened": ("small-narrow", {}, "float32"),
    "reference": ("small-qwen3", {"kl_loss_coef": 0.1}, "float32"),
    "named reference": ("small-llama", {"kl_loss_coef": 0.1}, "float32"),
    "adapters": ("small-qwen2", {"lora_rank": 2, "kl_loss_coef": 0.1}, "float32"),
    "rounded adapters": ("small-qwen2", {"lora_rank": 2}, "bfloat16"),
    "conv1d": ("small-gpt2", {}, "float32"),
}


def settings(more):
    config = ConfigStore()
    for name, value in {"adv_estimator": "gae", "learning_rate": 1e-3, **more}.items():
        setattr(config.training, name, value)
    return config


def memory():
    """The bytes that this process has now, and the most that it ever had."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM"))


def measured(folder):
    """How much the memory grew while a model was loaded and sharded, at its highest."""
    loaded_in_parts(folder / SMALL, settings({}))  # imports what is needed
    before, _ = memory()
    learner = loaded_in_parts(folder / LARGE, settings({"adv_estimator": "grpo"}))
    _, peak = memory()
    own = sum(local_shard(p).numel() * 4 for p in learner.model.parameters())
    return {"grown": peak - before, "own": own}


def loaded_in_parts(folder, config, dtype="float32"):
    model = load_empty_model(folder, dtype=dtype, device="cpu")
    assert is_empty(model)
    return make_learner(config, model, context_size=1)


def kept(learner):
    tensors = local_shards(dict(learner.model.named_parameters()))
    if learner._reference is not None:
        reference = dict(learner._reference.named_parameters())
        tensors |= {f"reference.{k}": x for k, x in local_shards(reference).items()}
    return tensors | {f"buffer.{k}": x for k, x in learner.model.named_buffers()}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name


def compared(folder, case):
    """Load the same model in both ways, and train both."""
    name, more, dtype = CASES[case]
    config = settings(more)
    if case == "named reference":
        config.model.reference = str(folder / "small-qwen3")
    parts = loaded_in_parts(folder / name, config, dtype)
    model = load_model(folder / name, dtype=dtype, device="cpu").model
    whole = make_learner(config, model, context_size=1)
    assert_same(kept(parts), kept(whole))
    assert parts.model.layout == whole.model.layout
    assert parts.model.shares_prefixes == whole.model.shares_prefixes
    alone = PolicyValueModel(load_model(folder / name, dtype=dtype, device="cpu").model)
    batch = with_targets(random_batch(5), Learner(alone))
    metrics = [learner.update(batch) for learner in (parts, whole)]
    assert metrics[0] == metrics[1]
    assert_same(kept(parts), kept(whole))
    assert_same(*(local_shards(policy_weights(learner)) for learner in (parts, whole)))
    assert_same(*(learner.optimizer.state_tensors() for learner in (parts, whole)))


def main(rank, world, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store-{world}", rank=rank, world_size=world
    )
    found = measured(folder)
    (folder / f"memory-{world}-{rank}.json").write_text(json.dumps(found))
    if world == 2:
        for case in CASES:
            compared(folder, case)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
