"""Runs TRL's GRPOTrainer on the work of bench/train_step.py, in the environment `trl`.

It has its fastest settings: no reference model, no gradient checkpointing (`checkpointing` turns
its default on), the whole batch at once (`micro_batch`), no second forward for old log-probs. No
sampled token ends a turn, by an attribute of the trainer rather than a slower logits processor.

Several turns use its own `environment_factory`. A random model writes no tool calls, so the
tokenizer's parser is replaced by one that takes every turn for a call: less work than a real one.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import transformers
import transformers.models.llama.modeling_llama  # or its import would count as the model
import trl  # type: ignore[import-not-found]
from datasets import Dataset  # type: ignore[import-not-found]
from measure import Order, Report, earned, fitted, memory_mib


class Timed(trl.GRPOTrainer):  # type: ignore[misc]
    """Keeps how long generation takes, and how many tokens it gives."""

    order: Order
    report: Report

    def _generate(self, prompts: list[Any]) -> Any:
        start = self.order.now()
        found = super()._generate(prompts)
        self.report.generate.append(self.order.now() - start)
        prompt_ids, completion_ids, tool_mask = found[:3]
        sampled = completion_ids if tool_mask is None else [[m for m in r if m] for r in tool_mask]
        self.report.num_sampled.append(sum(map(len, sampled)))
        self.report.num_tokens.append(sum(map(len, [*prompt_ids, *completion_ids])))
        return found


class Clock(transformers.TrainerCallback):
    """Times each step from the end of the one before."""

    def __init__(self, order: Order, report: Report) -> None:
        self._now = order.now
        self._report = report
        self._last = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._last = self._now()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        now = self._now()
        self._report.step.append(now - self._last)
        self._last = now


class World:
    """Returns observations of a fixed number of tokens."""

    observation = ""

    def reset(self, **row: Any) -> None:
        self._said: list[str] = []

    def step(self, text: str) -> str:
        """Say something.

        Args:
            text: What to say.

        Returns:
            The world's answer.
        """
        self._said.append(text)
        return self.observation

    def get_reward(self) -> float:
        return earned(self._said)


def score(completions: list[Any], **_: Any) -> list[float]:
    return [earned([completion[-1]["content"]]) for completion in completions]


def read_as_call(tokenizer: Any) -> None:
    """Makes the tokenizer parse every turn as a call of `step`."""

    def parse(ids: list[int], **_: Any) -> dict[str, Any]:
        text = tokenizer.decode(ids, skip_special_tokens=True)
        call = {"name": "step", "arguments": {"text": text}}
        calls = [{"type": "function", "function": call}]
        return {"role": "assistant", "content": text, "tool_calls": calls}

    tokenizer.parse_response = parse
    tokenizer.response_template = {}


def prompts_of(order: Order, tokenizer: Any) -> list[list[dict[str, str]]]:
    def messages_of(text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": text}]

    def count(text: str) -> int:
        messages = messages_of(text)
        options = {"add_generation_prompt": True, "return_dict": False}
        return len(tokenizer.apply_chat_template(messages, **options))

    work = order.work
    return [messages_of(fitted(work.prompt_tokens, count, i)) for i in range(work.num_prompts)]


def config_of(order: Order, folder: str) -> Any:
    work, options = order.work, order.options
    micro_batch = min(options.get("micro_batch") or work.num_episodes, work.num_episodes)
    # In a conversation the length is a limit of the whole, and of a turn by generation_kwargs.
    length = work.episode_tokens - work.prompt_tokens
    return trl.GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        num_generations=work.group_size,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=work.num_episodes // micro_batch,
        max_completion_length=length,
        generation_kwargs={"max_new_tokens": work.new_tokens, "eos_token_id": None},
        max_tool_calling_iterations=work.num_turns - 1,
        max_steps=order.num_steps,
        learning_rate=order.learning_rate,
        lr_scheduler_type="constant",
        beta=0.0,
        gradient_checkpointing=bool(options.get("checkpointing")),
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main() -> None:
    order = Order.read()
    report = Report(f"TRL {trl.__version__}", memory_mib())
    torch.set_num_threads(order.num_threads)
    work = order.work
    tokenizer = transformers.AutoTokenizer.from_pretrained(order.model)
    model: Any = transformers.LlamaForCausalLM.from_pretrained(order.model, dtype=torch.float32)
    several: dict[str, Any] = {"reward_funcs": score}
    if work.num_turns > 1:
        read_as_call(tokenizer)
        several = {"environment_factory": World}
        report.note = "every answer is read as a tool call"
    with tempfile.TemporaryDirectory() as folder:
        trainer = Timed(
            model,
            args=config_of(order, folder),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([{"prompt": p} for p in prompts_of(order, tokenizer)]),
            callbacks=[Clock(order, report)],
            **several,
        )
        trainer.order, trainer.report = order, report
        trainer.eos_token_ids = [-1]
        if work.num_turns > 1:
            World.observation = fitted(work.observation_tokens, between(trainer), 0)
        trainer.train()
    report.print()


def between(trainer: Any) -> Any:
    """Returns a function that counts the tokens of an observation."""

    def count(text: str) -> int:
        message = {"role": "tool", "name": "step", "content": text}
        return len(trainer._get_tool_suffix_ids([message]))

    return count


if __name__ == "__main__":
    main()
