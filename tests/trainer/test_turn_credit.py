"""Credit for a turn beats credit for the episode where what came before it was luck."""

import functools
import random
import tempfile
from statistics import mean

import pytest

from trainer.worlds import Echo, small_config, small_model
from turnwise import Trainer


class LuckThenEcho(Echo):
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

    def expert_action(self):
        """Half of the time it guesses."""
        return self.rng.choice([self.letter, self.rng.choice(self.letters)])


def train(*settings, seed, weights=None):
    """The share of right last turns in each step, and the weights that they led to."""
    LuckThenEcho.coins = random.Random(seed)
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
        with Trainer(config, LuckThenEcho, model=model, tokenizer=tokenizer) as trainer:
            successes = [metrics["success"] for metrics in trainer.fit()]
    return successes, {name: x.clone() for name, x in model.state_dict().items()}


@functools.cache
def imitated(seed):
    """The start of all that is compared."""
    return train(
        "training.batch_size=16",
        "training.warm_start=expert",
        "training.warm_start_steps=100",
        "training.warm_start_learning_rate=5e-3",
        "training.steps_per_epoch=1",
        "training.learning_rate=1e-12",
        seed=seed,
    )[1]


def learn(estimator, seed):
    return train(
        "training.warm_start=null",
        "training.steps_per_epoch=15",
        "training.learning_rate=2e-3",
        "training.lr_schedule=linear",
        "training.warmup_steps=3",
        "training.update_epochs=2",
        "training.mini_batch_size=32",
        f"training.adv_estimator={estimator}",
        "training.batch_size=8",
        seed=seed,
        weights=imitated(seed),
    )[0]


@pytest.mark.parametrize("seed", [0])
def test_credit_for_the_turn_learns_what_luck_hides_from_credit_for_the_episode(seed):
    by_episode, by_turn = learn("grpo", seed), learn("turn_grpo", seed)
    assert by_turn[0] == by_episode[0] < 0.8
    assert mean(by_turn[-4:]) > 0.9
    assert mean(by_turn[-4:]) > mean(by_episode[-4:]) + 0.1
