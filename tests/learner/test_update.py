"""The update: the same however it is computed, and the one that the formulas say."""

import copy
import dataclasses
import math

import pytest
import torch

from algo.cases import AGGREGATIONS
from inference.tiny_models import make_model
from learner.episodes import (
    ALL_TERMS,
    double_model,
    largest_difference,
    noise,
    random_batch,
    weights,
    with_targets,
)
from turnwise import ConfigError
from turnwise.algo import POLICY_LOSSES
from turnwise.learner import Learner, LearnerOptions


def updated(options, *, family="gpt2", num_updates=2, change=lambda batch: batch, **model_options):
    """Weights and metrics after some updates on the same episodes."""
    learner = Learner(double_model(family, **model_options), options)
    batch = change(with_targets(random_batch(), learner))
    metrics = [learner.update(batch) for _ in range(num_updates)]
    return weights(learner.model), metrics


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_how_a_batch_is_cut_into_packs_does_not_change_the_update(mode):
    options = dataclasses.replace(ALL_TERMS, loss_agg_mode=mode, update_epochs=2)
    whole, metrics = updated(options)
    for budget in (1, 20, 41):
        cut, cut_metrics = updated(dataclasses.replace(options, micro_batch_tokens=budget))
        assert largest_difference(whole, cut) < 1e-6
        for first, second in zip(metrics, cut_metrics, strict=True):
            assert second == pytest.approx(first, rel=1e-6, abs=1e-6)


# Shares of the tokens that are as large as these pick some of every minibatch.
PICKING = {
    "clip_cov": {"clip_cov_ratio": 0.2, "clip_cov_lower": 0.0, "clip_cov_upper": 9.0},
    "kl_cov": {"kl_cov_ratio": 0.2},
}


@pytest.mark.parametrize("loss", sorted(POLICY_LOSSES))
@pytest.mark.parametrize(("mini_batch_size", "budget"), [(None, 25), (4, 1)])
def test_no_policy_loss_depends_on_how_a_batch_is_cut_into_packs(loss, mini_batch_size, budget):
    """Nor on anything but the minibatch: some losses pick tokens by what they know of all."""
    options = dataclasses.replace(
        ALL_TERMS,
        policy_loss=loss,
        policy_loss_options=PICKING.get(loss, {}),
        mini_batch_size=mini_batch_size,
        update_epochs=2,
    )
    whole, metrics = updated(options, num_updates=1)
    assert metrics[0].get("cov_fraction", 0.2) > 0.1
    torch.manual_seed(budget)  # what a loss draws is a matter of the update's own seed
    cut, cut_metrics = updated(
        dataclasses.replace(options, micro_batch_tokens=budget), num_updates=1
    )
    assert largest_difference(whole, cut) < 1e-6
    assert cut_metrics[0] == pytest.approx(metrics[0], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("critic", [None, "shared"])
@pytest.mark.parametrize(("size", "epochs"), [(None, 1), (2, 2), (100, 2)])
@pytest.mark.parametrize("is_exact", [True, False])
def test_the_log_probs_that_are_kept_are_those_before_the_update(size, epochs, is_exact, critic):
    options = LearnerOptions(learning_rate=0.05, mini_batch_size=size, update_epochs=epochs)
    learner = Learner(double_model(critic=critic), options)
    batch = with_targets(random_batch(7), learner)
    batch.sampler_is_exact = is_exact
    expected = torch.where(batch.response_mask, learner.score(batch).log_probs, 0.0)
    gap = (batch.sampler_log_probs - expected)[batch.response_mask].abs()
    figures = learner.update(batch)
    assert torch.allclose(learner.log_probs_before_update.double(), expected, rtol=0, atol=1e-6)
    assert figures["gap_max"] == pytest.approx(float(gap.max()), abs=1e-6)
    assert figures["gap_mean"] == pytest.approx(float(gap.mean()), abs=1e-6)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_packed_padded_and_checkpointed_give_the_same_update(family):
    whole, _ = updated(ALL_TERMS, family=family)
    padded, _ = updated(ALL_TERMS, family=family, layout="padded")
    again, _ = updated(ALL_TERMS, family=family, gradient_checkpointing=True)
    assert largest_difference(whole, padded) < 1e-6
    assert largest_difference(whole, again) < 1e-6


def plain_ppo_step(model, batch, options):
    """One step written down from the papers, on the model's own padded forward."""
    policy, head = model.policy, model.value_head
    hidden = policy(
        batch.input_ids, attention_mask=batch.attention_mask.long(), output_hidden_states=True
    )
    every = hidden.logits[:, :-1].log_softmax(-1)
    chosen = every.gather(2, batch.input_ids[:, 1:, None]).squeeze(2)
    values = head(hidden.hidden_states[-1][:, :-1]).squeeze(2)
    mask = batch.response_mask[:, 1:].double()

    def mean(x):
        return (x * mask).sum() / mask.sum()

    old, advantages, returns, old_values, reference = (
        x[:, 1:]
        for x in (
            batch.sampler_log_probs,
            batch.advantages,
            batch.returns,
            batch.values,
            batch.ref_log_probs,
        )
    )
    ratio = (chosen - old).exp()
    surrogate = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    surrogate = torch.where(advantages < 0, torch.max(surrogate, 3 * advantages), surrogate)
    near = old_values + (values - old_values).clamp(-0.2, 0.2)
    value_loss = 0.5 * mean(torch.max((values - returns) ** 2, (near - returns) ** 2))
    entropy = mean(-(every.exp() * every).sum(-1))
    kl = mean(0.5 * (chosen - reference) ** 2)  # whose gradient is that of the KL
    loss = (
        -mean(surrogate)
        - options.entropy_coef * entropy
        + options.kl_loss_coef * kl
        + options.value_coef * value_loss
    )
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    adam = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": options.weight_decay}, {"params": others}],
        lr=options.learning_rate,
        weight_decay=0.0,
        foreach=False,
    )
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.max_grad_norm)
    adam.step()
    return [float(x.detach()) for x in (norm, value_loss, entropy)]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_one_step_is_that_of_an_independent_implementation(family):
    model = double_model(family)
    twin = copy.deepcopy(model)
    learner = Learner(model, ALL_TERMS)
    batch = with_targets(random_batch(), learner)
    before = weights(model)
    metrics = learner.update(batch)
    norm, value_loss, entropy = plain_ppo_step(twin, batch, ALL_TERMS)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-6)
    assert metrics["value_loss"] == pytest.approx(value_loss, rel=1e-6)
    assert metrics["entropy"] == pytest.approx(entropy, rel=1e-6)
    assert largest_difference(weights(model), weights(twin)) < 1e-6
    assert largest_difference(weights(model), before) > 1e-4


def test_what_stands_at_a_masked_token_changes_nothing():
    def disturb(batch):
        names = ("sampler_log_probs", "advantages", "returns", "values", "ref_log_probs")
        spoilt = {
            name: torch.where(batch.response_mask, batch.need(name), torch.nan) for name in names
        }
        return dataclasses.replace(batch, **spoilt)

    clean, clean_metrics = updated(ALL_TERMS)
    spoilt, spoilt_metrics = updated(ALL_TERMS, change=disturb)
    assert largest_difference(clean, spoilt) == 0.0
    assert clean_metrics == spoilt_metrics


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_is_not_finite_never_reaches_the_weights(poison):
    learner = Learner(double_model(), ALL_TERMS)
    good = with_targets(random_batch(), learner)
    advantages = good.advantages.clone()
    row, column = good.response_mask.nonzero()[0].tolist()
    advantages[row, column] = poison
    learner.update(good)
    before, state = weights(learner.model), learner.optimizer.state_tensors()
    state = {name: x.clone() for name, x in state.items()}
    metrics = learner.update(dataclasses.replace(good, advantages=advantages))
    assert (metrics["num_skipped_steps"], metrics["num_steps"]) == (1, 0)
    assert all(math.isfinite(number) for number in metrics.values())
    assert largest_difference(weights(learner.model), before) == 0.0
    assert largest_difference(learner.optimizer.state_tensors(), state) == 0.0
    # And it goes on as if nothing had been.
    after = learner.update(good)
    assert after["num_skipped_steps"] == 0
    assert largest_difference(weights(learner.model), updated(ALL_TERMS)[0]) == 0.0


def test_an_update_stops_when_the_policy_has_moved_far_enough():
    options = LearnerOptions(learning_rate=0.02, update_epochs=50, value_coef=0.0)
    learner = Learner(double_model(), options)
    batch = random_batch()
    scores = learner.score(batch)
    batch = dataclasses.replace(batch, sampler_log_probs=scores.log_probs, advantages=noise(batch))
    learner.options = dataclasses.replace(options, target_kl=0.01)
    metrics = learner.update(batch)
    assert metrics["num_early_stops"] == 1
    assert 1 <= metrics["num_steps"] < 50


def test_recomputed_log_probs_turn_the_importance_correction_on():
    options = LearnerOptions(learning_rate=1e-3, importance_bounds=1.5, value_coef=0.0)
    learner = Learner(double_model(critic=None), options)
    batch = with_targets(random_batch(), learner)
    own = learner.score(batch).log_probs
    batch = dataclasses.replace(batch, old_log_probs=own)
    ratio = (own - batch.sampler_log_probs).exp().clamp(max=1.5)
    metrics = learner.update(batch)
    assert metrics["is_mean"] == pytest.approx(float(ratio[batch.response_mask].mean()))
    # The ratio of the loss is 1 at first, so the weights are factors of the advantages.
    other = Learner(double_model(critic=None), options)
    other.update(
        dataclasses.replace(
            batch, sampler_log_probs=own, old_log_probs=None, advantages=batch.advantages * ratio
        )
    )
    assert largest_difference(weights(learner.model), weights(other.model)) < 1e-6


def test_what_an_update_misses_is_named():
    learner = Learner(double_model(), LearnerOptions(kl_loss_coef=0.1))
    batch = with_targets(random_batch(), learner)
    with pytest.raises(ConfigError, match="needs ref_log_probs"):
        learner.update(dataclasses.replace(batch, ref_log_probs=None))
    with pytest.raises(ConfigError, match="needs advantages"):
        learner.update(dataclasses.replace(batch, advantages=None))
    with pytest.raises(ConfigError, match="needs a reference model"):
        learner.reference_log_probs(batch)


def test_imitation_is_the_mean_of_minus_log_p():
    learner = Learner(double_model(), LearnerOptions(learning_rate=1e-2))
    batch = random_batch()
    losses = [learner.imitate(batch)["policy_loss"] for _ in range(20)]
    fresh = Learner(double_model())
    expected = -fresh.score(batch).log_probs[batch.response_mask].mean()
    assert losses[0] == pytest.approx(float(expected))
    assert losses[-1] < 0.5 * losses[0]


def test_after_a_restart_the_reference_is_the_model_as_it_was_then():
    model = double_model("llama", None)
    options = LearnerOptions(learning_rate=1e-2, kl_loss_coef=0.1)
    learner = Learner(model, options, reference=make_model("llama").double())
    batch = random_batch()
    learner.imitate(batch)
    learner.restart()
    expected = learner.score(batch).log_probs
    torch.testing.assert_close(learner.reference_log_probs(batch), expected)
    learner.imitate(batch)
    torch.testing.assert_close(learner.reference_log_probs(batch), expected)

    other = Learner(double_model("llama", None), options, reference=make_model("llama").double())
    other.load_state(learner.state())
    torch.testing.assert_close(other.reference_log_probs(batch), expected)


@pytest.mark.parametrize("epochs", [1, 2])
def test_an_update_finds_the_log_probs_before_it_where_the_sampler_is_not_exact(epochs):
    def with_scores(batch):
        learner = Learner(double_model("gpt2"), ALL_TERMS)
        return dataclasses.replace(batch, old_log_probs=learner.score(batch).log_probs)

    def without(batch):
        return dataclasses.replace(batch, sampler_is_exact=False)

    options = dataclasses.replace(ALL_TERMS, update_epochs=epochs, micro_batch_tokens=20)
    told, told_metrics = updated(options, num_updates=1, change=with_scores)
    found, found_metrics = updated(options, num_updates=1, change=without)
    assert largest_difference(told, found) < 1e-9
    # The effective share is that of the parts, not of the whole.
    for metrics in (told_metrics, found_metrics):
        assert 0.5 < metrics[0].pop("is_ess") < 1.0
    assert found_metrics[0] == pytest.approx(told_metrics[0], rel=1e-6, abs=1e-9)
