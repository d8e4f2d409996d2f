"""PPOTrainer and DataParallelPPOActor: the names that hand-written loops use."""

import pytest
import torch

from inference.tiny_models import make_model
from learner.episodes import largest_difference, weights
from turnwise import ConfigError, ConfigStore, DataParallelPPOActor, PPOTrainer
from turnwise.algo import compute_policy_loss, compute_value_loss
from turnwise.learner import LearnerOptions, make_learner


def plain_gae(rewards, values, dones, gamma, lam):
    """The textbook's loop over one list of steps."""
    advantages, carried, following = [], 0.0, 0.0
    for reward, value, done in reversed(list(zip(rewards, values, dones, strict=True))):
        alive = 0.0 if done else 1.0
        delta = reward + gamma * following * alive - value
        carried = delta + gamma * lam * alive * carried
        advantages.append(carried)
        following = value
    return advantages[::-1]


@pytest.mark.parametrize("with_dones", [False, True])
def test_advantages_run_over_the_policys_tokens_alone(with_dones):
    trainer = PPOTrainer(make_model(), None, gamma=0.9, lam=0.8)
    torch.manual_seed(0)
    rewards, values = torch.randn(2, 3, 9).double().unbind()
    mask, dones = torch.rand(3, 9) < 0.6, (torch.rand(3, 9) < 0.3) & with_dones
    advantages, returns = trainer.compute_gae_advantages(rewards, values, dones, mask)
    expected = torch.zeros(3, 9).double()
    for row in range(3):
        kept = mask[row]
        found = plain_gae(rewards[row][kept], values[row][kept], dones[row][kept], 0.9, 0.8)
        expected[row][kept] = torch.stack(found) if found else torch.zeros(0).double()
    torch.testing.assert_close(returns, torch.where(mask, expected + values, 0.0))
    chosen = expected[mask]
    whitened = (expected - chosen.mean()) / (chosen.var() + 1e-8).sqrt()
    torch.testing.assert_close(advantages, torch.where(mask, whitened, 0.0))
    every, plain_returns = trainer.compute_gae_advantages(rewards, values, dones)
    for row in range(3):
        found = torch.stack(plain_gae(rewards[row], values[row], dones[row], 0.9, 0.8))
        torch.testing.assert_close(plain_returns[row], found + values[row])
    assert abs(float(every.mean())) < 1e-9


def test_its_losses_are_those_of_the_library():
    trainer = PPOTrainer(make_model(), None, clip_ratio=0.1)
    old, new, advantages, returns = torch.randn(4, 2, 5).unbind()
    mask = torch.rand(2, 5) < 0.7
    loss, metrics = trainer.compute_ppo_loss(old, new, advantages, mask)
    assert loss == compute_policy_loss(old, new, advantages, mask, 0.1)[0]
    assert metrics["policy_loss"] == loss
    ratio = (new - old)[mask].exp()
    assert metrics["ratio_mean"] == pytest.approx(float(ratio.mean()))
    assert metrics["ratio_std"] == pytest.approx(float(ratio.std()))
    assert {type(value) for value in metrics.values()} == {float}
    value_loss, metrics = trainer.compute_value_loss(new, returns, mask)
    expected = 0.5 * (new - returns)[mask].square().mean()
    torch.testing.assert_close(value_loss, expected)
    clipped, _ = trainer.compute_value_loss(new, returns, mask, old_values=old)
    assert clipped == compute_value_loss(new, returns, old, mask)[0]


def sampled(policy, num_rows=8):
    """A batch as a hand-written loop has it: a dict, with tensors of the response alone."""
    torch.manual_seed(1)
    ids = torch.randint(0, 97, (num_rows, 10))
    with torch.no_grad():
        every = policy(ids).logits.log_softmax(-1)
    old = every[:, 3:-1].gather(2, ids[:, 4:, None]).squeeze(2)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones(num_rows, 10),
        "responses": ids[:, 4:],
        "response_mask": torch.ones(num_rows, 6),
        "old_log_probs": old,
        "rewards": (ids[:, -1] < 50).float(),
        "dones": torch.zeros(num_rows, 6),
    }


def test_update_learns_with_one_model_for_both():
    policy = make_model()
    trainer = PPOTrainer(policy_model=policy, value_model=policy, learning_rate=1e-3)
    batch = sampled(policy)
    before = weights(policy)
    metrics = trainer.update(batch, num_epochs=3)
    assert metrics["num_steps"] == 3
    assert metrics["gap_max"] < 1e-4
    assert largest_difference(before, weights(policy)) > 1e-5
    losses = [trainer.update(batch)["value_loss"] for _ in range(10)]
    assert losses[-1] < losses[0]


def test_update_reports_each_epoch_and_the_ratio_of_the_last():
    policy = make_model()
    trainer = PPOTrainer(policy, policy, learning_rate=1e-3)
    batch = sampled(policy)
    metrics = trainer.update(batch, num_epochs=3)
    for name in ("policy_loss", "value_loss"):
        epochs = [metrics[f"epoch_{number}_{name}"] for number in range(3)]
        assert metrics[name] == pytest.approx(sum(epochs) / 3)
        assert len(set(epochs)) == 3
    assert metrics["epoch_2_total_loss"] != metrics["epoch_0_total_loss"]
    assert "epoch_3_policy_loss" not in metrics
    # Two steps have moved the policy by the time of the third epoch, and none before the first.
    assert metrics["ratio_std"] > 1e-4
    first = PPOTrainer(make_model()).update({**batch, "advantages": torch.ones(8, 6)}, 1)
    assert (first["ratio_mean"], first["ratio_std"]) == pytest.approx((1.0, 0.0), abs=1e-5)


def test_update_takes_advantages_and_then_needs_no_critic():
    policy = make_model()
    trainer = PPOTrainer(policy)
    batch = sampled(policy)
    with pytest.raises(ConfigError, match="needs a critic"):
        trainer.update(batch)
    metrics = trainer.update({**batch, "advantages": torch.randn(8, 6)}, num_epochs=1)
    assert metrics["num_steps"] == 1
    assert "value_loss" not in metrics


def test_the_actor_computes_log_probs_and_updates_the_policy():
    policy = make_model()
    batch = sampled(policy)
    actor = DataParallelPPOActor(policy, LearnerOptions(learning_rate=1e-3))
    log_probs = actor.compute_log_prob(batch)
    torch.testing.assert_close(log_probs, batch["old_log_probs"], rtol=1e-4, atol=1e-4)
    outputs = actor.forward(batch)
    torch.testing.assert_close(outputs["log_probs"][:, -6:].detach(), log_probs)
    assert outputs["log_probs"].requires_grad
    data = {**batch, "advantages": torch.where(batch["responses"] < 50, 1.0, -1.0)}
    for _ in range(5):
        metrics = actor.update_policy(data)
    assert metrics["num_steps"] == 1
    gained = actor.compute_log_prob(batch) - log_probs
    assert float(gained[data["advantages"] > 0].mean()) > float(
        gained[data["advantages"] < 0].mean()
    )


def test_a_critic_is_made_only_for_who_needs_one():
    config = ConfigStore()
    config.training.adv_estimator = "grpo"
    assert not make_learner(config, make_model()).model.has_critic
    config.training.policy_loss = "gppo"
    with pytest.raises(ConfigError, match="Did you mean"):
        make_learner(config, make_model())
