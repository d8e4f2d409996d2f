"""Small tasks that must be learned, from a seed, by each family of algorithms."""

import functools
import random
import tempfile
from statistics import mean

import pytest
import torch

from trainer.worlds import Echo, Memory, small_config, small_model, small_trainer, training
from turnwise import ConfigError, Trainer
from turnwise.learner import PPOBatch

# Starts in a step; all play 64 episodes, those that compare the episodes of a group 8 of each.
BATCHES = {"gae": 64, "turn_gae": 64, "reinforce_plus_plus": 64, "grpo": 8, "rloo": 8}


class Fallible:
    """Its expert guesses half of the time. Who imitates it is as often wrong, however long the
    imitation was: the rest can only be learned by trying."""

    def expert_action(self):
        return self.rng.choice([self.letter, self.rng.choice(self.letters)])


class FallibleMemory(Fallible, Memory):
    letters = "abc"


class LuckThenEcho(Fallible, Echo):
    """First a coin is tossed for 30, whatever is said; then two letters are shown, one after the
    other, and to say one pays 1.

    Luck gives the rewards a variance of 225, what can be learned at most 1/2. Credit for the
    episode puts all of it on each turn, so what a right letter is worth drowns; credit for the turn
    leaves out what was earned before. The coin is not of the seed, for a group shares that. Nor may
    it depend on what is said: a policy soon says the same in a whole group there, and has the same
    luck.
    """

    num_shown = 2
    coins = random.Random(0)

    def reset(self):
        super().reset()
        self.is_lucky = self.coins.random() < 0.5
        return "?"

    def step(self, action):
        self.step_count += 1
        is_right = action == self.letter
        earned = 30.0 * self.is_lucky if self.step_count == 1 else float(is_right)
        self.letter = self.rng.choice(self.letters)
        self._done = self.step_count > self.num_shown
        return self.letter, earned, self._done, {"success": is_right}


def trained(world, *settings, seed, weights=None, metric="reward"):
    """A metric of the steps, and the weights that they led to."""
    LuckThenEcho.coins = random.Random(seed)
    # Tied embeddings make it easy to say again what was read.
    model, tokenizer = small_model(seed, tie_word_embeddings=True)
    if weights is not None:
        model.load_state_dict(weights)
    with tempfile.TemporaryDirectory() as folder:
        config = small_config(
            folder,
            "checkpoint.save_interval=1000",
            "inference.max_tokens=2",
            "training.num_epochs=1",
            f"training.seed={seed}",
            *settings,
        )
        with Trainer(config, world, model=model, tokenizer=tokenizer) as trainer:
            values = [metrics[metric] for metrics in trainer.fit()]
    return values, {name: x.clone() for name, x in model.state_dict().items()}


@functools.cache
def imitated(world, seed, num_steps=50):
    """What the expert can teach: the start of all that is learned here, made once."""
    return trained(
        world,
        "training.batch_size=16",
        "training.warm_start=expert",
        f"training.warm_start_steps={num_steps}",
        *training("warm_start_learning_rate=5e-3 steps_per_epoch=1 learning_rate=1e-12"),
        seed=seed,
    )[1]


def learn(world, estimator, *settings, num_imitated=50, metric="reward"):
    """The mean reward of each step, or another metric."""
    return trained(
        world,
        *training(
            "warm_start=null learning_rate=2e-3 lr_schedule=linear warmup_steps=3 "
            "update_epochs=2 mini_batch_size=32"
        ),
        f"training.adv_estimator={estimator}",
        f"training.batch_size={BATCHES.get(estimator, 8)}",
        *settings,
        seed=0,
        weights=imitated(world, 0, num_imitated),
        metric=metric,
    )[0]


@pytest.mark.parametrize("estimator", BATCHES)
class TestEachAlgorithm:
    def test_remembers_a_letter_for_three_turns(self, estimator):
        rewards = learn(FallibleMemory, estimator, "training.steps_per_epoch=15")
        assert rewards[0] < 0.85
        assert mean(rewards[-4:]) > 0.9


def test_credit_for_the_turn_learns_what_luck_hides_from_credit_for_the_episode():
    by_episode, by_turn = (
        learn(LuckThenEcho, name, "training.steps_per_epoch=15", num_imitated=100, metric="success")
        for name in ("grpo", "turn_grpo")
    )
    assert by_turn[0] == by_episode[0] < 0.8
    assert mean(by_turn[-4:]) > 0.9
    assert mean(by_turn[-4:]) > mean(by_episode[-4:]) + 0.1


@pytest.mark.parametrize(
    "kl",
    [("training.kl_loss_coef=0.1",), ("training.use_kl_in_reward=true", "training.kl_coef=0.1")],
    ids=["loss", "reward"],
)
def test_without_rewards_a_policy_that_is_its_reference_stays_what_it_is(tmp_path, kl):
    model, tokenizer = small_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    settings = training(
        "adv_estimator=grpo batch_size=8 mini_batch_size=4 num_epochs=1 steps_per_epoch=2 "
        "warm_start=null learning_rate=1e-2"
    )
    given = {"model": model, "tokenizer": tokenizer, "reward_fn": lambda trajectory: 0.0}
    with small_trainer(tmp_path, Memory, *settings, *kl, **given) as trainer:
        learner = trainer.components.learner
        scored = learner.reference_log_probs

        def rounded(batch):  # as in other packs
            log_probs = scored(batch)
            return log_probs + 1e-6 * torch.randn_like(log_probs)

        learner.reference_log_probs = rounded
        history = trainer.fit()
    assert [metrics["grad_norm"] for metrics in history] == [0.0, 0.0]
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)


def test_the_reference_of_a_kl_term_may_be_another_model(tmp_path):
    other, tokenizer = small_model()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.1)
    other.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    settings = (
        f"model.reference={tmp_path / 'other'}",
        *training(
            "kl_loss_coef=0.1 adv_estimator=grpo batch_size=4 num_epochs=1 steps_per_epoch=1 "
            "warm_start=random warm_start_steps=1"
        ),
    )
    ids = torch.randint(4, 200, (1, 12), generator=torch.Generator().manual_seed(0))
    sampled = torch.arange(12)[None] > 3
    with small_trainer(tmp_path, Memory, *settings) as trainer:
        (metrics,) = trainer.fit()
        learner = trainer.components.learner
        log_probs = learner.reference_log_probs(PPOBatch(ids, sampled, sampled | True))
    expected = other(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    assert torch.allclose(log_probs[:, 4:], expected[:, 3:], atol=1e-5)
    assert metrics["kl_ref"] > 1e-4


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (("model.reference=tiny",), "no KL term"),
        (("model.reference=tiny", "training.kl_loss_coef=0.1"), "other tokens"),
        (("model.reference={run}", "training.kl_loss_coef=0.1"), "turnwise export"),
    ],
)
def test_a_reference_that_cannot_be_compared_is_refused(tmp_path, settings, problem):
    model, tokenizer = small_model()
    tokenizer.add_tokens(["<another>"])
    run = tmp_path / "Shop"
    run.mkdir()
    (run / "run.json").write_text("{}")
    settings = [setting.format(run=run) for setting in settings]
    with (
        pytest.raises(ConfigError, match=problem),
        small_trainer(tmp_path, Memory, *settings, model=model, tokenizer=tokenizer) as trainer,
    ):
        trainer.fit()
