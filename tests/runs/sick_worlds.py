"""Worlds and a model for runs that go wrong in a known way, each in a second or so."""

import contextlib
import copy
import functools
import tempfile

from trainer.worlds import Echo, small_config, small_trainer, training
from turnwise import Trainer, TrainingStopped, tool
from turnwise.models.tiny import make_tiny_tokenizer

QUICK = (
    *training("warm_start=null batch_size=8 num_epochs=1 eval_episodes=0"),
    "inference.max_tokens=3",
)


class SafeWord(Echo):
    """Pays most of the reward for one safe word, all of it now and then for another: who is only
    after the mean learns to say nothing but the safe word."""

    def reset(self):
        super().reset()
        self.letter = self.rng.choice("bzzz")  # z is never said
        return self.letter

    def step(self, action):
        self._done = True
        right = action == self.letter
        return "", 1.0 if right else 0.7 * (action == "a"), True, {"success": right}


class Password(Echo):
    """The password is to be found out, and stands in the first observation."""

    letters = "a"

    def reset(self):
        return f"Say the password ({super().reset()})"


class Long(Echo):
    """The answer is longer than a turn may be."""

    letters = "a"

    def step(self, action):
        self._done = True
        right = action == self.letter * 9
        return "", float(right), True, {"success": right}

    def sample_action(self, rng):
        return rng.choice(self.letters) * 9


@tool
def look() -> str:
    """Look around."""
    return "a wall"


class Tooled(Echo):
    """Asks for a tool; its expert writes the call as JSON."""

    def expert_action(self):
        return '{"name": "look"}'


@functools.cache
def speaking_model(environment=Echo, who="random", **options):
    """A model that has learned from the world's players how to speak, but not what is right."""
    steps = ("training.steps_per_epoch=1", "training.num_epochs=1", "training.eval_episodes=0")
    batch = 16 if environment is Echo else 4  # the others say the same each time
    slow = ("training.learning_rate=1e-9", f"training.batch_size={batch}")
    slow = (*slow, f"training.warm_start={who}", "training.warm_start_steps=24")
    with (
        tempfile.TemporaryDirectory() as folder,
        small_trainer(folder, environment, *slow, *steps, **options) as trainer,
    ):
        trainer.fit()
        return trainer.components.learner.model.policy


def train(folder, environment, *overrides, steps=6, model=None, prepare=None, **options):
    """Train for a few steps; the run folder. A run that stops itself leaves one, too."""
    model = copy.deepcopy(model or speaking_model())
    overrides = (*QUICK, f"training.steps_per_epoch={steps}", *overrides)
    config = small_config(folder, *overrides)
    tokenizer = make_tiny_tokenizer()
    with Trainer(config, environment, model=model, tokenizer=tokenizer, **options) as trainer:
        if prepare is not None:
            prepare(trainer)
        with contextlib.suppress(TrainingStopped):
            trainer.fit()
    return trainer.run_folder
