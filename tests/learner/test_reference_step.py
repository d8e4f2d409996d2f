"""From rewards to new weights: a step of PPOTrainer beside one in plain torch.

`test_update` compares the step from given advantages on; here the values, GAE over the turns and
the whitening are part of it. The other implementation is written down from the papers: padded, one
episode after the other, in float64.
"""

import copy

import pytest
import torch

from learner.episodes import double_model, largest_difference, noise, random_batch, weights
from turnwise.learner import PPOTrainer

LEARNING_RATE, CLIP, ENTROPY, VALUE, GAMMA, LAMBDA = 1e-3, 0.2, 0.02, 0.7, 0.97, 0.9


def evaluated(model, ids, present):
    """Log-probs, entropies and values of the tokens after the first: [B, T - 1]."""
    found = model.policy(ids, attention_mask=present.long(), output_hidden_states=True)
    every = found.logits[:, :-1].log_softmax(-1)
    chosen = every.gather(2, ids[:, 1:, None]).squeeze(2)
    entropy = -(every.exp() * every).sum(-1)
    return chosen, entropy, model.value_head(found.hidden_states[-1][:, :-1]).squeeze(2)


def plain_advantages(rewards, values, mask):
    """GAE by the definition: the sum over all later tokens of the policy."""
    advantages = torch.zeros_like(rewards)
    for row in range(len(rewards)):
        places = mask[row].nonzero().squeeze(1).tolist()
        following = [values[row, place] for place in places[1:]] + [0.0]
        errors = [
            rewards[row, place] + GAMMA * later - values[row, place]
            for place, later in zip(places, following, strict=True)
        ]
        for number, place in enumerate(places):
            advantages[row, place] = sum(
                (GAMMA * LAMBDA) ** k * error for k, error in enumerate(errors[number:])
            )
    return advantages


def plain_step(model, batch):
    ids, present, mask = batch.input_ids, batch.attention_mask, batch.response_mask[:, 1:]
    old, rewards = batch.old_log_probs[:, 1:], batch.rewards[:, 1:]
    with torch.no_grad():
        old_values = evaluated(model, ids, present)[2]
    raw = plain_advantages(rewards, old_values, mask)
    returns = (raw + old_values)[mask]
    advantages = (raw[mask] - raw[mask].mean()) / raw[mask].std()

    log_probs, entropy, values = (x[mask] for x in evaluated(model, ids, present))
    ratio = (log_probs - old[mask]).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    gain = torch.min(ratio * advantages, clipped * advantages).mean()
    # Values move from where they are: nothing is clipped in a first step.
    loss = -gain - ENTROPY * entropy.mean() + VALUE * 0.5 * (values - returns).square().mean()
    adam = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, foreach=False)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam.step()
    return float(loss.detach()), float(norm)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_from_rewards_to_weights(family):
    model = double_model(family)
    twin = copy.deepcopy(model)
    trainer = PPOTrainer(
        model,
        learning_rate=LEARNING_RATE,
        clip_ratio=CLIP,
        entropy_coef=ENTROPY,
        value_loss_coef=VALUE,
        gamma=GAMMA,
        lam=LAMBDA,
    )
    batch = random_batch()
    batch.old_log_probs = trainer.learner.score(batch).log_probs + noise(batch, 0.2)
    batch.rewards = torch.where(batch.response_mask, noise(batch, 1.0, seed=2), 0.0)
    before = weights(model)
    metrics = trainer.update(batch, num_epochs=1)
    loss, norm = plain_step(twin, batch)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-6)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-6)
    assert largest_difference(weights(model), weights(twin)) < 1e-6
    assert largest_difference(weights(model), before) > 1e-4
