"""Runs AgileRL's GRPO on the work of bench/train_step.py, in the environment `agilerl`.

The loop is that of its own `train_llm_rollout`: collect, collate, learn. It trains only LoRA
adapters, so its update differs from the others', and no bar depends on it. No reference model, no
gradient checkpointing, the whole batch at once.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import agilerl  # type: ignore[import-not-found]
import torch
import transformers
import transformers.models.llama.modeling_llama  # or its import would count as the model
from measure import Order, Report, earned, fitted, memory_mib


class World:
    """Starts with one of the prompts, then returns observations of a fixed number of tokens."""

    system_prompt = ""

    def __init__(self, prompts: list[str], observation: str, num_turns: int) -> None:
        self._prompts = prompts
        self._observation = observation
        self._num_turns = num_turns
        self._num_said = 0

    def reset(self, seed: int | None = None, **_: Any) -> tuple[str, dict[str, Any]]:
        self._num_said = 0
        return self._prompts[(seed or 0) % len(self._prompts)], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._num_said += 1
        return self._observation, earned([action]), self._num_said >= self._num_turns, False, {}


def make_world(order: Order, tokenizer: Any) -> World:
    def rendered(*messages: dict[str, str]) -> int:
        options = {"add_generation_prompt": True, "return_dict": False}
        return len(tokenizer.apply_chat_template(list(messages), **options))

    def prompt_length(text: str) -> int:
        return rendered({"role": "user", "content": text})

    def between(text: str) -> int:
        answered = [{"role": "user", "content": "0"}, {"role": "assistant", "content": ""}]
        return rendered(*answered, {"role": "user", "content": text}) - prompt_length("0")

    work = order.work
    prompts = [fitted(work.prompt_tokens, prompt_length, i) for i in range(work.num_prompts)]
    observation = fitted(work.observation_tokens, between, 0) if work.num_turns > 1 else ""
    return World(prompts, observation, work.num_turns)


def make_agent(order: Order, tokenizer: Any) -> Any:
    from agilerl.algorithms import GRPO  # type: ignore[import-not-found]

    work = order.work
    model: Any = transformers.LlamaForCausalLM.from_pretrained(order.model, dtype=torch.float32)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    return GRPO(
        pad_token_id=tokenizer.pad_token_id,
        pad_token=tokenizer.pad_token,
        actor_network=model,
        batch_size=work.num_prompts,
        group_size=work.group_size,
        beta=0.0,
        lr=order.learning_rate,
        temperature=1.0,
        top_k=0,
        max_output_tokens=work.new_tokens,
        max_model_len=work.episode_tokens,
        gradient_checkpointing=False,
        use_liger_loss=False,
        use_separate_reference_adapter=False,
        device="cpu",
    )


def train(order: Order, report: Report) -> None:
    from agilerl.llm_envs import (  # type: ignore[import-not-found]
        RolloutCollector,
        RolloutHarness,
    )
    from agilerl.rollouts.on_policy import (  # type: ignore[import-not-found]
        collate_llm_rollouts,
        collect_rollouts_llm,
    )

    report.imported_mib = memory_mib()
    work = order.work
    tokenizer = transformers.AutoTokenizer.from_pretrained(order.model)
    agent = make_agent(order, tokenizer)

    def factory(**_: Any) -> Any:
        world = make_world(order, tokenizer)
        return RolloutHarness.local(world, tokenizer, max_turns=work.num_turns)

    collector = RolloutCollector(factory, work.num_prompts, work.group_size)
    group_seed = 0
    for _ in range(order.num_steps):
        start = order.now()
        agent.init_training_step()
        ids, masks, turn_ids, rewards, num_turns, group_seed, log_probs, _ = collect_rollouts_llm(
            agent, collector, work.num_turns, collector.batch_size, group_seed
        )
        collected = order.now()
        batch = collate_llm_rollouts(
            ids, masks, turn_ids, rewards, log_probs, group_size=work.group_size
        )
        agent.learn(
            batch.experiences(), turn_ids=batch.turn_ids, sampling_logps=batch.sampling_logps
        )
        agent.finalize_training_step(num_turns)
        report.step.append(order.now() - start)
        report.generate.append(collected - start)
        report.num_sampled.append(sum(int(mask.sum()) for mask in masks))
        report.num_tokens.append(sum(one.numel() for one in ids))


def main() -> None:
    # Otherwise it puts Triton kernels into the model, which do not run on a CPU.
    agilerl.HAS_LIGER_KERNEL = False
    order = Order.read()
    report = Report(f"AgileRL {version('agilerl')}", memory_mib(), note="LoRA adapters only")
    torch.set_num_threads(order.num_threads)
    train(order, report)
    report.print()


if __name__ == "__main__":
    main()
