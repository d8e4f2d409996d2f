"""Training in half precision: small updates reach the weights, and all who round do it alike."""

import pytest
import torch

from inference.tiny_models import make_model
from learner.episodes import random_batch, with_targets
from turnwise import ConfigStore, load_model
from turnwise.inference.local import LocalEngine
from turnwise.learner import Learner, LearnerOptions, PolicyValueModel, make_learner, merged_weights
from turnwise.learner.lora import merge_lora
from turnwise.models.rounding import round_weight, threshold_key
from turnwise.trainer.assembly import begins_with_other_weights
from turnwise.trainer.components import UserComponents

HALF = [torch.bfloat16, torch.float16]


def make_half_learner(dtype=torch.bfloat16, **options):
    model = PolicyValueModel(make_model("llama").to(dtype), None)
    return Learner(model, LearnerOptions(**{"learning_rate": 1e-5, **options}))


def policy_weights(learner):
    return {n: p.detach().clone() for n, p in learner.model.policy.named_parameters()}


def masters(learner):
    state = learner.optimizer.state_tensors()
    return {n.removeprefix("master."): x for n, x in state.items() if n.startswith("master.")}


@pytest.mark.parametrize("dtype", HALF)
def test_the_first_small_step_reaches_the_weights(dtype):
    learner = make_half_learner(dtype)
    before = policy_weights(learner)
    metrics = learner.update(with_targets(random_batch(), learner))
    after = policy_weights(learner)
    moved = sum(int((after[name] != before[name]).sum()) for name in before)
    share = moved / sum(x.numel() for x in before.values())
    assert metrics["weights_changed"] == pytest.approx(share)
    # A step of Adam is as large as the learning rate: rounded to nearest, no larger weight moves.
    larger = {name: x.abs() > 0.05 for name, x in before.items()}
    nearest = {name: masters(learner)[f"policy.{name}"].to(dtype) for name in before}
    assert not any((nearest[n] != before[n])[larger[n]].any() for n in before)
    assert any((after[n] != before[n])[larger[n]].any() for n in before)


@pytest.fixture(scope="module")
def float32_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "wide"
    make_model("llama").save_pretrained(folder)
    load_model("tiny", device="cpu").tokenizer.save_pretrained(folder)
    return folder


def test_masters_begin_in_the_precision_of_the_file(float32_folder):
    wide = dict(load_model(float32_folder, device="cpu").model.named_parameters())
    config = ConfigStore()
    config.training.kl_loss_coef = 0.1
    loaded = load_model(float32_folder, dtype="bfloat16", device="cpu").model
    learner = make_learner(config, loaded)
    for name, master in masters(learner).items():
        if name.startswith("policy."):
            assert torch.equal(master, wide[name.removeprefix("policy.")])
    # The weights are the rounded masters from the first step on, and those of the reference.
    for name, weight in policy_weights(learner).items():
        rounded = round_weight(wide[name].detach(), torch.bfloat16, threshold_key(name))
        assert torch.equal(weight, rounded)
    batch = random_batch()
    scores = learner.score(batch).log_probs
    assert torch.equal(learner.reference_log_probs(batch), scores)


def test_weights_that_were_changed_after_loading_stay(float32_folder):
    model = load_model(float32_folder, dtype="bfloat16", device="cpu").model
    with torch.no_grad():
        model.model.norm.weight.fill_(2.0)
    learner = make_learner(ConfigStore(), model)
    assert float(masters(learner)["policy.model.norm.weight"].max()) == 2.0


def test_engine_export_and_other_engines_merge_adapters_alike():
    pytest.importorskip("peft")
    from turnwise.learner import add_lora

    model = add_lora(make_model("llama").bfloat16(), 4)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # so small that nearest rounding would lose nearly all of it
            parameter.data = 1e-4 * torch.randn(parameter.shape, generator=generator).bfloat16()
    base = {
        n.replace(".base_layer.", "."): p.detach().clone()
        for n, p in model.named_parameters()
        if ".lora_" not in n
    }
    sent = merged_weights(model)
    changed = [n for n in sent if n in base and not torch.equal(sent[n], base[n])]
    assert any(n.endswith("q_proj.weight") for n in changed)
    engine = LocalEngine(model)
    try:
        for index, layer in enumerate(engine._runner._fused.layers):
            prefix = f"model.layers.{index}.self_attn"
            parts = [sent[f"{prefix}.{kind}_proj.weight"] for kind in "qkv"]
            assert torch.equal(layer.attention_inputs.weight, torch.cat(parts))
            assert torch.equal(
                layer.mlp_output.weight, sent[f"model.layers.{index}.mlp.down_proj.weight"]
            )
    finally:
        engine.close()
    exported = merge_lora(model).state_dict()
    assert all(torch.equal(exported[name], tensor) for name, tensor in sent.items())


@pytest.mark.parametrize(("dtype", "is_sent"), [("bfloat16", True), ("float32", False)])
def test_an_engine_that_rounds_a_file_itself_gets_the_weights_first(float32_folder, dtype, is_sent):
    model = load_model(float32_folder, dtype=dtype, device="cpu").model
    config = ConfigStore.load(None, ["inference.backend=vllm"])
    assert begins_with_other_weights(config, UserComponents(), model) == is_sent
    config.inference.backend = "local"  # which samples from the learner's modules
    assert not begins_with_other_weights(config, UserComponents(), model)
