"""One of two learners that keep a model in parts; run as `sharded_child.py RANK FOLDER`.

Goes through the cases one after the other and leaves what it has of each in the folder.
"""

import dataclasses
import sys
from pathlib import Path

import torch

from inference.tiny_models import make_model
from learner.episodes import ALL_TERMS, double_model, random_batch, with_targets
from turnwise.learner import Learner, PolicyValueModel, add_lora
from turnwise.learner.base import trained_parameters
from turnwise.learner.sharded import ShardedLearner
from turnwise.learner.sharding import local_shard, local_shards, split_shards
from turnwise.trainer.learning import policy_weights

NUM_LEARNERS = 2
OPTIONS = dataclasses.replace(ALL_TERMS, update_epochs=2, mini_batch_size=3, micro_batch_tokens=20)


def narrow_model():
    return PolicyValueModel(make_model("llama").bfloat16(), "shared")


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
    "no critic": lambda: (double_model("qwen3", None), None),
    "checkpointed": lambda: (double_model("llama", gradient_checkpointing=True), None),
    "reference": lambda: (double_model("llama"), make_model("llama").double()),
    "adapters": lambda: (adapted_model(), None),
    "bfloat16": lambda: (narrow_model(), None),
    "muon": lambda: (double_model("llama"), None),
}


def prepared(case, make=Learner):
    """A learner, and a batch for it; the last of its minibatches is one episode alone."""
    model, reference = CASES[case]()
    batch = with_targets(random_batch(7), Learner(model))
    if not model.has_critic:
        batch = dataclasses.replace(batch, returns=None, values=None)
    model, reference = CASES[case]()
    options = dataclasses.replace(OPTIONS, optimizer="muon" if case == "muon" else "adamw")
    return make(model, options, reference=reference), batch


def learned(learner, batch, rows=slice(None)):
    """What a learner computes of some rows, and then learns from the batch, in numbers."""
    part = batch.select(torch.arange(len(batch))[rows])
    outcome = {"scores": learner.score(part).log_probs, "squares": learner.sum_pi_squared(part)}
    if learner._reference is not None or "lora" in str(learner.optimizer.names):
        outcome["reference"] = learner.reference_log_probs(part)
    outcome["metrics"] = learner.update(batch)
    outcome["imitated"] = learner.imitate(batch)
    # In one step, so that each measures the gap and the weights on its own episodes alone.
    options, learner.options = (
        learner.options,
        dataclasses.replace(OPTIONS, update_epochs=1, mini_batch_size=None),
    )
    outcome["corrected"] = learner.update(dataclasses.replace(batch, sampler_is_exact=False))
    assert {"gap_max", "is_mean", "is_max", "is_ess"} <= set(outcome["corrected"])
    outcome["seen"] = learner.log_probs_before_update
    learner.options = options
    return outcome


def left_over(learner):
    """A copy of the learner's own part of all that is to be kept."""
    rest = {name: local_shard(x.detach()) for name, x in learner.state_tensors().items()}
    kept = {
        "weights": local_shards(trained_parameters(learner.model)),
        "rest": rest,
        "policy": local_shards(policy_weights(learner)),
    }
    return {
        kind: {name: x.clone() for name, x in tensors.items()} for kind, tensors in kept.items()
    }


@torch.no_grad()
def take(learner, whole, rank):
    weights, rest = (split_shards(whole[kind], NUM_LEARNERS)[rank] for kind in ("weights", "rest"))
    for name, parameter in trained_parameters(learner.model).items():
        local_shard(parameter).copy_(weights[name])
    learner.optimizer.refresh_masters()
    learner.load_state_tensors(rest)


def main(rank, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NUM_LEARNERS
    )
    for case in CASES:
        learner, batch = prepared(case, ShardedLearner)
        rows = slice(0, 5) if rank == 0 else slice(5, None)
        outcome = learned(learner, batch, rows) | left_over(learner)
        whole = torch.load(folder / f"{case}.alone")
        take(learner, whole, rank)
        learner.update(batch)
        outcome["further"] = left_over(learner)["weights"]
        torch.save(outcome, folder / f"{case}.{rank}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[3]))
