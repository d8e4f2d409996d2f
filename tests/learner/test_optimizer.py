"""The optimiser: masters of half-precision weights, schedules, and a state that can be saved."""

import pytest
import torch
from torch import nn

from learner.episodes import double_model, largest_difference, random_batch, weights, with_targets
from turnwise import ConfigError
from turnwise.learner import Learner, LearnerOptions, MasterOptimizer


def named(*tensors):
    return [(f"p{i}", nn.Parameter(x)) for i, x in enumerate(tensors)]


def test_half_precision_gradients_are_added_up_in_float32():
    parameters = named(torch.zeros(1, 1, dtype=torch.bfloat16))
    optimizer = MasterOptimizer(parameters)
    for _ in range(600):
        parameters[0][1].sum().backward()
    assert parameters[0][1].grad is None
    assert float(optimizer.gradient_norm()) == 600.0  # bf16 would stay at 256


def test_it_is_adamw_and_leaves_weights_where_they_lie():
    torch.manual_seed(0)
    block = torch.randn(6, 3)
    parameters = named(block[:2], block[2:], torch.randn(3))
    others = [nn.Parameter(p.detach().clone()) for _, p in parameters]
    plain = torch.optim.AdamW(
        [{"params": others[:2], "weight_decay": 0.1}, {"params": others[2:], "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.95),
    )
    optimizer = MasterOptimizer(parameters, weight_decay=0.1)
    for step in range(5):
        for many in ([p for _, p in parameters], others):
            sum((p * (i + step + 1)).square().sum() for i, p in enumerate(many)).backward()
        optimizer.step(1e-2)
        plain.step()
        optimizer.zero_grad()
        plain.zero_grad()
    for (_, parameter), other in zip(parameters, others, strict=True):
        torch.testing.assert_close(parameter, other)
    assert torch.equal(block[:2], parameters[0][1])  # still a view of the block


@pytest.mark.parametrize("make", ["adamw", "muon"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_state_goes_on_exactly(dtype, make):
    def run(optimizer, parameters, steps):
        for step in steps:
            sum((p.float() * (step + 1)).square().sum() for _, p in parameters).backward()
            optimizer.step(1e-2)
            optimizer.zero_grad()

    torch.manual_seed(0)
    start = torch.randn(3, 2).to(dtype)
    whole = named(start.clone())
    optimizer = MasterOptimizer(whole, make)
    run(optimizer, whole, range(3))
    saved = {name: x.clone() for name, x in optimizer.state_tensors().items()}
    resumed = named(whole[0][1].detach().clone())
    run(optimizer, whole, range(3, 6))
    second = MasterOptimizer(resumed, make)
    second.load_state_tensors(saved)
    run(second, resumed, range(3, 6))
    assert torch.equal(whole[0][1], resumed[0][1])
    assert largest_difference(optimizer.state_tensors(), second.state_tensors()) == 0.0


def test_the_state_of_another_model_is_refused():
    optimizer = MasterOptimizer(named(torch.ones(2, 2)))
    with pytest.raises(ConfigError, match="belongs to another model"):
        optimizer.load_state_tensors({"exp_avg.other": torch.ones(2, 2)})


def test_new_weights_reach_the_masters():
    parameters = named(torch.ones(2, 2, dtype=torch.bfloat16))
    optimizer = MasterOptimizer(parameters)
    parameters[0][1].data.fill_(5.0)
    optimizer.refresh_masters()
    parameters[0][1].sum().backward()
    optimizer.step(1e-6)
    assert float(parameters[0][1].detach().max()) == 5.0


def test_schedules():
    def rates(schedule):
        options = LearnerOptions(
            learning_rate=2.0, lr_schedule=schedule, warmup_steps=2, total_steps=10
        )
        return [options.learning_rate_at(step) for step in range(12)]

    assert rates("constant") == [1.0] + [2.0] * 11
    linear, cosine = rates("linear"), rates("cosine")
    for falling in (linear, cosine):
        assert falling[:3] == [1.0, 2.0, 2.0]
        assert falling[2:] == sorted(falling[2:], reverse=True)
        assert falling[6] == pytest.approx(1.0)
        assert falling[10] == falling[11] == 0.0
    assert linear[4] < cosine[4]
    with pytest.raises(ConfigError, match="total_steps"):
        LearnerOptions(lr_schedule="cosine").learning_rate_at(0)


def test_muon_is_torchs_muon_for_hidden_matrices_and_adamw_for_the_rest():
    torch.manual_seed(0)
    names = ["layers.0.up.weight", "layers.0.down.weight", "embed_tokens.weight", "norm.weight"]
    shapes = [(6, 4), (4, 6), (9, 4), (4,)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    others = [nn.Parameter(p.detach().clone()) for p in ours]
    optimizer = MasterOptimizer(zip(names, ours, strict=True), "muon", weight_decay=0.1)
    reference = torch.optim.Muon(
        others[:2], lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    plain = torch.optim.AdamW(
        [{"params": others[2:3], "weight_decay": 0.1}, {"params": others[3:], "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.95),
    )
    for step in range(4):
        for many in (ours, others):
            sum((p * (i + step + 1)).square().sum() for i, p in enumerate(many)).backward()
        optimizer.step(1e-2)
        reference.step()
        plain.step()
        for p in others:
            p.grad = None
        optimizer.zero_grad()
    for mine, other in zip(ours[:2], others[:2], strict=True):
        # Torch makes its matrices orthogonal in bfloat16, with an error of a hundredth of a step.
        torch.testing.assert_close(mine, other, atol=4e-4, rtol=0)
    for mine, other in zip(ours[2:], others[2:], strict=True):
        torch.testing.assert_close(mine, other)


def test_an_optimiser_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "def sgd(weights, *, weight_decay, betas, epsilon, momentum):\n"
        "    return torch.optim.SGD([w.master for w in weights], lr=0.0, momentum=momentum)\n"
    )
    monkeypatch.chdir(tmp_path)
    options = LearnerOptions(
        learning_rate=1e-2, optimizer="own.py:sgd", optimizer_options={"momentum": 0.5}
    )
    learner = Learner(double_model(), options)
    before = {name: x.clone() for name, x in weights(learner.model).items()}
    batch = with_targets(random_batch(), learner)
    learner.update(batch)
    learner.update(batch)
    assert largest_difference(weights(learner.model), before) > 0.0
    assert any(name.startswith("momentum_buffer.") for name in learner.state().rest)
    with pytest.raises(ConfigError, match="Did you mean 'muon'"):
        Learner(double_model(), LearnerOptions(optimizer="moun"))
    with pytest.raises(ConfigError, match="no option 'momentm'"):
        Learner(double_model(), LearnerOptions(optimizer="muon", optimizer_options={"momentm": 1}))
