"""Runs turnwise's `Trainer` on the work of bench/train_step.py.

It writes what it writes by default: metrics and episodes of every step on disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import torch
import transformers.models.llama.modeling_llama  # noqa: F401 - or its import would count as the model
from measure import Order, Report, earned, fitted, memory_mib

from turnwise import BaseEnvironment, ConfigStore, __version__
from turnwise.chat import ChatFormat
from turnwise.models import load_model
from turnwise.trainer import RayPPOTrainer as Trainer  # commits before Trainer have this name
from turnwise.trainer.reporter import RunInfo


class World(BaseEnvironment):
    """Starts with its row's prompt, then returns observations of a fixed number of tokens."""

    quick = True
    observation = ""
    num_turns = 1

    def reset(self) -> str:
        assert self.task is not None
        return str(self.task["prompt"])

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return self.observation, earned([action]), self.step_count >= self.num_turns, {}

    def get_state_description(self) -> str:
        return "the same"


class Notes:
    """A reporter that keeps the duration of each step, from the end of the one before."""

    def __init__(self, order: Order, report: Report) -> None:
        self._now = order.now
        self._report = report
        self._last = self._played = 0.0

    def begin(self, run: RunInfo) -> None:
        self._last = self._now()

    def progress(self, what: str, done: int, total: int) -> None:
        if what == "episodes" and done == total:
            self._played = self._now()

    def step(self, metrics: Mapping[str, float]) -> None:
        now, report = self._now(), self._report
        report.step.append(now - self._last)
        report.generate.append(self._played - self._last)
        self._last = now
        report.num_sampled.append(round(metrics["num_sampled_tokens"]))
        tokens = ("context_tokens_per_episode", "tokens_per_episode")
        per_episode = sum(metrics[name] for name in tokens)
        report.num_tokens.append(round(per_episode * metrics["num_episodes"]))

    def say(self, text: str) -> None:
        pass

    def end(self, outcome: str) -> None:
        pass


def config_of(order: Order, folder: str) -> ConfigStore:
    work, config = order.work, ConfigStore()
    config.model.local_path = order.model
    config.model.dtype = "float32"
    config.model.device = "cpu"
    config.inference.max_tokens = work.new_tokens
    config.inference.max_turns = work.num_turns
    config.training.adv_estimator = "grpo"
    config.training.batch_size = work.num_prompts
    config.training.group_size = work.group_size
    config.training.learning_rate = order.learning_rate
    config.training.num_epochs = 1
    config.training.steps_per_epoch = order.num_steps
    config.checkpoint.output_dir = folder
    for name, value in order.options.items():
        setattr(config.training, name, value)
    return config


def never_stop() -> None:
    """No sampled token and no text ends a turn from here on."""
    for name, nothing in (("stop_ids", frozenset()), ("stop_strings", ())):
        setattr(ChatFormat, name, nothing)


def main() -> None:
    order = Order.read()
    report = Report(f"turnwise {__version__}", memory_mib())
    torch.set_num_threads(order.num_threads)
    work = order.work
    loaded = load_model(order.model, dtype="float32", device="cpu")
    chat = ChatFormat(loaded.tokenizer)

    def prompt_length(text: str) -> int:
        return len(chat.prompt_ids([{"role": "user", "content": text}]))

    def between(text: str) -> int:
        return len(chat.increment_ids([{"role": "user", "content": text}], [0]))

    prompts = [fitted(work.prompt_tokens, prompt_length, i) for i in range(work.num_prompts)]
    World.num_turns = World.max_steps = work.num_turns
    never_stop()
    if work.num_turns > 1:
        World.observation = fitted(work.observation_tokens, between, 0)
    with (
        tempfile.TemporaryDirectory() as folder,
        Trainer(
            config_of(order, folder),
            World,
            dataset=[{"prompt": prompt} for prompt in prompts],
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            reporter=Notes(order, report),
        ) as trainer,
    ):
        trainer.fit(1, order.num_steps)
    report.print()


if __name__ == "__main__":
    main()
