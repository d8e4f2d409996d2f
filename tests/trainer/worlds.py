"""Small worlds and a small model, for training that takes a second or two."""

import asyncio
import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise import BaseEnvironment, ConfigStore, Trainer
from turnwise.models.tiny import make_tiny_tokenizer

LETTERS = "abcd"


def training(text):
    """Overrides of the section `training`: `training("seed=1 gamma=0.9")`."""
    return tuple(f"training.{setting}" for setting in text.split())


QUICK = (
    *training("batch_size=4 num_epochs=2 steps_per_epoch=1 warm_start=null"),
    "inference.max_tokens=2",
)
"""Settings of a run of two steps."""


class Echo(BaseEnvironment):
    """Say the letter that you read."""

    quick = True
    letters = LETTERS

    def reset(self):
        self._done = False
        self.step_count = 0
        self.letter = self.rng.choice(self.letters)
        return self.letter

    def step(self, action):
        self._done = True
        right = action == self.letter
        return "", float(right), True, {"success": right}

    def get_state_description(self):
        return self.letter

    def sample_action(self, rng: random.Random):
        return rng.choice(self.letters)

    def expert_action(self):
        return self.letter


class Memory(Echo):
    """The letter is told first and asked for at the end; what is said between does not count."""

    def step(self, action):
        self.step_count += 1
        if self.step_count < 3:
            return "?", 0.0, False, {}
        self._done = True
        right = action == self.letter
        return "", float(right), True, {"success": right}


class Uneven(Memory):
    """Its steps take a varying time, and whatever is said earns something."""

    async def step(self, action):
        await asyncio.sleep(self.rng.choice([0.0, 0.001, 0.02]))
        observation, _, done, info = super().step(action)
        return observation, sum(action.encode()) % 7 / 6, done, info


class Several(Echo):
    """Four letters, one after the other, each paid for by itself."""

    num_letters = 4

    def step(self, action):
        self.step_count += 1
        right = action == self.letter
        self.letter = self.rng.choice(self.letters)
        self._done = self.step_count == self.num_letters
        return self.letter, float(right), self._done, {"success": right}


def small_model(seed=0, **settings):
    """50,000 weights, and bytes for tokens."""
    tokenizer = make_tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.1,
        **settings,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval(), tokenizer


def small_config(folder, *overrides):
    return ConfigStore.load(
        overrides=[
            f"checkpoint.output_dir={folder}",
            "inference.max_tokens=3",
            *training(
                "batch_size=32 steps_per_epoch=5 learning_rate=3e-3 warm_start=random "
                "warm_start_steps=30 warm_start_learning_rate=1e-2"
            ),
            *overrides,
        ]
    )


def small_trainer(folder, environment=Echo, *overrides, **options):
    """A trainer whose epochs are five steps, with a dataset one pass."""
    model, tokenizer = small_model()
    options = {"model": model, "tokenizer": tokenizer, **options}
    if options.get("dataset") is not None:
        overrides = ("training.steps_per_epoch=null", *overrides)
    return Trainer(small_config(folder, *overrides), environment, **options)
