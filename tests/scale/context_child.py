"""One of several learners that split episodes; run as `context_child.py RANK WORLD FOLDER`.

Compares what they compute together with what a learner computes alone.
"""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

from inference.tiny_models import make_model
from learner.episodes import ALL_TERMS, double_model, random_batch, with_targets
from learner.test_branches import make_stream
from scale.sharded_child import adapted_model, left_over
from turnwise.errors import ConfigError
from turnwise.learner import Learner, PolicyValueModel, PPOBatch, add_lora
from turnwise.learner.sharded import ShardedLearner
from turnwise.learner.sharding import split_shards
from turnwise.learner.workers import ShardedWorkers

OPTIONS = dataclasses.replace(ALL_TERMS, update_epochs=2, mini_batch_size=3, micro_batch_tokens=20)


def windowed_model():
    """Its sliding windows are shorter than a learner's part of an episode."""
    model = make_model("mistral").double()
    model.config.sliding_window = 4
    return PolicyValueModel(model, "shared")


CASES = {
    "shared critic": lambda: (double_model("llama"), None),
    "own critic": lambda: (double_model("gpt2", "separate"), None),
    "no critic, checkpointed": lambda: (
        double_model("qwen3", None, gradient_checkpointing=True),
        None,
    ),
    "reference": lambda: (double_model("llama"), make_model("llama").double()),
    "adapters": lambda: (adapted_model(), None),
    "windows": lambda: (windowed_model(), None),
    "branches": lambda: (double_model("llama"), None),
}


def make_batch(case, model):
    """Seven episodes; the first three have the same prompt."""
    if case == "branches":
        trees = ((4, 5), (0, 2), (3, 6), (6, 6), (5, 1), (4, 4), (0, 5))
        turns = [([5], [6, 7], 0), ([8], [9], 4), ([2, 2], [1, 0, 1], 5)]
        batch = PPOBatch.from_streams(
            [
                make_stream([turns[0], (*turns[1][:2], at), (*turns[2][:2], then)])
                for at, then in trees
            ]
        )
        assert batch.branches is not None
    else:
        batch = random_batch(7, width=15)
        batch.input_ids[:3, :2] = batch.input_ids[0, :2]
        batch.response_mask[:, 1] = False
    batch = with_targets(batch, Learner(model))
    return batch if model.has_critic else dataclasses.replace(batch, returns=None, values=None)


def assert_close(ours, theirs, what):
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), what
        for name, value in ours.items():
            assert_close(value, theirs[name], f"{what} {name}")
    elif ours is not None:
        ours, theirs = (torch.as_tensor(x).double() for x in (ours, theirs))
        assert ours.shape == theirs.shape, what
        gap = (ours - theirs).abs() / (1.0 + theirs.abs())
        # AdamW divides by the size of a gradient, also where that is as small as its rounding.
        allowed = 1e-5 if " weights " in what or " policy " in what else 1e-6
        assert bool((gap <= allowed).all()), f"{what}: {gap.max()}"


def computed(learner, batch):
    found = dataclasses.asdict(learner.score(batch))
    found["squares"] = learner.sum_pi_squared(batch)
    if learner._reference is not None:
        found["reference"] = learner.reference_log_probs(batch)
    return found


def compare(case, context_size):
    """The learners of one group have the same rows; all learn from the whole batch."""
    batch = make_batch(case, CASES[case]()[0])
    model, reference = CASES[case]()
    alone = Learner(model, OPTIONS, reference=reference)
    model, reference = CASES[case]()
    learner = ShardedLearner(model, OPTIONS, reference=reference, context_size=context_size)
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    first = 4 * (rank // context_size)
    rows = torch.arange(first, 7 if first or context_size == world else 4)
    own = batch.select(rows)
    assert_close(computed(learner, own), computed(alone, own), case)
    for step in ("update", "imitate"):
        ours, theirs = getattr(learner, step)(batch), getattr(alone, step)(batch)
        assert_close(ours, theirs, f"{case} {step}")
    # The moments of the optimiser are sums of gradients.
    kept, expected = left_over(learner), left_over(alone)
    expected["rest"] = split_shards(expected["rest"], world)[rank]
    assert_close(kept, expected, case)


def check_tokens(context_size):
    """Each learner computes its part of a long episode alone."""
    learner = ShardedLearner(double_model("llama"), OPTIONS, context_size=context_size)
    lengths = []
    embedding = learner.model.policy.get_input_embeddings()
    embedding.register_forward_hook(lambda _, ids, output: lengths.append(ids[0].shape[1]))
    learner.score(random_batch(1, width=50))
    assert lengths == [-(-50 // context_size)]


def check_errors():
    adapted = make_model("llama")
    add_lora(adapted, 2, dropout=0.1)
    with pytest.raises(ConfigError, match="lora_dropout"):
        ShardedLearner(PolicyValueModel(adapted), OPTIONS, context_size=2)
    padded = PolicyValueModel(make_model("llama"), layout="padded")
    with pytest.raises(ConfigError, match="cannot be packed"):
        ShardedLearner(padded, OPTIONS, context_size=2)
    with pytest.raises(ConfigError, match=r"divisor of ray\.num_learners, which is 2"):
        ShardedWorkers(torch.device("cpu"), 3)


def main(rank, world, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store-{world}", rank=rank, world_size=world
    )
    if world == 2:
        for case in CASES:
            compare(case, 2)
        check_tokens(2)
        check_errors()
    else:
        compare("shared critic", 2)  # and two shares of the rows
        compare("shared critic", 4)  # of two key heads
        check_tokens(4)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
