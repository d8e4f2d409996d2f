"""One of several learners that share a model; run as `sharded_child.py RANK WORLD FOLDER`.

Compares what they compute together with what a learner computes alone. Each keeps a shard of the
model; with a context size, adjacent learners also split the tokens of each episode.
"""

import dataclasses
import functools
import sys
from pathlib import Path

import pytest
import torch

from inference.tiny_models import make_model
from learner.episodes import ALL_TERMS, double_model, random_batch, with_targets
from learner.test_branches import make_stream
from turnwise.errors import ConfigError
from turnwise.learner import Learner, PolicyValueModel, PPOBatch, add_lora
from turnwise.learner.base import LearnerState
from turnwise.learner.sharding import local_shards, split_shards
from turnwise.learner.workers import Workers
from turnwise.trainer.learning import policy_weights

OPTIONS = dataclasses.replace(ALL_TERMS, update_epochs=2, mini_batch_size=3, micro_batch_tokens=20)
# In one step, so that each measures the gap and the weights on its own episodes alone.
IN_ONE_STEP = dataclasses.replace(OPTIONS, update_epochs=1, mini_batch_size=None)


def windowed_model():
    """Its sliding windows are shorter than a learner's part of an episode."""
    model = make_model("mistral").double()
    model.config.sliding_window = 4
    return PolicyValueModel(model, "shared")


def adapted_model():
    model = make_model("llama").double()
    add_lora(model, 2)
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # they begin at zero, and so would what is merged
            torch.nn.init.normal_(parameter, std=0.1)
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
    "muon": lambda: (double_model("llama"), None),
    "bfloat16": lambda: (PolicyValueModel(make_model("llama").bfloat16(), "shared"), None),
}


def make_batch(case):
    """Seven episodes; the first three have the same prompt. The last minibatch is one episode."""
    model, _ = CASES[case]()
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


def make_learner(case, make):
    model, reference = CASES[case]()
    options = dataclasses.replace(OPTIONS, optimizer="muon" if case == "muon" else "adamw")
    return make(model, options, reference=reference)


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
        if what.startswith("bfloat16"):  # the gradient of a pack is rounded once more
            allowed = 2e-2
        assert bool((gap <= allowed).all()), f"{what}: {gap.max()}"


def scores(learner, batch):
    outputs = dataclasses.asdict(learner.score(batch))
    outputs["squares"] = learner.sum_pi_squared(batch)
    if learner._reference is not None:
        outputs["reference"] = learner.reference_log_probs(batch)
    return outputs


def left_over(learner, rank, world):
    """A copy of this learner's shard of all that is to be kept."""
    state = learner.state()
    rest = state.rest
    kept = {
        "weights": state.weights,
        "rest": rest if learner.workers.is_sharded else split_shards(rest, world)[rank],
        "policy": local_shards(policy_weights(learner)),
    }
    return {
        kind: {name: x.clone() for name, x in tensors.items()} for kind, tensors in kept.items()
    }


def compare(case, context_size):
    """The learners of one group have the same rows; all learn from the whole batch."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    batch = make_batch(case)
    alone = make_learner(case, Learner)
    learner = make_learner(case, functools.partial(Learner, context_size=context_size))
    first = 4 * (rank // context_size)
    own = batch.select(torch.arange(first, 7 if first or context_size == world else 4))
    assert_close(scores(learner, own), scores(alone, own), case)

    def learn(step, batch):
        ours, theirs = (getattr(one, step)(batch) for one in (learner, alone))
        if case == "bfloat16":  # which tokens are clipped is a matter of the last digit
            assert ours["policy_loss"] == pytest.approx(theirs["policy_loss"], rel=0.1, abs=0.1)
        else:
            assert_close(ours, theirs, f"{case} {step}")
            seen, expected = learner.log_probs_before_update, alone.log_probs_before_update
            assert_close(seen, expected, f"{case} seen")
        return ours

    learn("update", batch)
    learn("imitate", batch)
    learner.options = alone.options = dataclasses.replace(
        IN_ONE_STEP, optimizer=learner.options.optimizer
    )
    metrics = learn("update", dataclasses.replace(batch, sampler_is_exact=False))
    assert {"gap_max", "is_mean", "is_max", "is_ess"} <= set(metrics)
    # The moments of the optimiser are sums of gradients.
    expected = left_over(alone, rank, world)
    assert_close(left_over(learner, rank, world), expected, case)
    learner.load_state(LearnerState(expected["weights"], expected["rest"]))
    learn("update", batch)
    kept, expected = (left_over(one, rank, world)["weights"] for one in (learner, alone))
    assert_close(kept, expected, f"{case} weights ")


def check_tokens(context_size):
    """Each learner computes its part of a long episode alone."""
    learner = Learner(double_model("llama"), OPTIONS, context_size=context_size)
    lengths = []
    embedding = learner.model.policy.get_input_embeddings()
    embedding.register_forward_hook(lambda _, ids, output: lengths.append(ids[0].shape[1]))
    learner.score(random_batch(1, width=50))
    assert lengths == [-(-50 // context_size)]


def check_errors():
    adapted = make_model("llama")
    add_lora(adapted, 2, dropout=0.1)
    with pytest.raises(ConfigError, match="lora_dropout"):
        Learner(PolicyValueModel(adapted), OPTIONS, context_size=2)
    padded = PolicyValueModel(make_model("llama"), layout="padded")
    with pytest.raises(ConfigError, match="episodes are padded"):
        Learner(padded, OPTIONS, context_size=2)
    with pytest.raises(ConfigError, match=r"divisor of ray\.num_learners, which is 2"):
        Workers(torch.device("cpu"), 3)


def main(rank, world, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store-{world}", rank=rank, world_size=world
    )
    if world == 2:
        for case in CASES:
            compare(case, 1)
            if case not in ("bfloat16", "muon"):
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
