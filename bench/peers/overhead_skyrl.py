"""Runs SkyRL's generator on the work of bench/overhead.py, in the environment `skyrl`.

`SkyRLGymGenerator` plays the episodes as in training: conversations of many turns, tokens in and
tokens out, with log-probs. Environments run on the event loop (`max_env_workers=0`), its cheapest
way.
"""

from __future__ import annotations

import asyncio
import sys
import typing
from time import process_time
from typing import Any

import typing_extensions

if sys.version_info < (3, 12):  # pydantic refuses typing's own there, and SkyRL uses it
    typing.TypedDict = typing_extensions.TypedDict

import skyrl_gym  # type: ignore[import-not-found]
from overhead_work import Order, Report, time_turns
from skyrl.train.config import (  # type: ignore[import-not-found]
    GeneratorConfig,
    SkyRLGymConfig,
)
from skyrl.train.generators.skyrl_gym_generator import (  # type: ignore[import-not-found]
    SkyRLGymGenerator,
)
from skyrl_gym.envs.base_text_env import BaseTextEnv  # type: ignore[import-not-found]
from transformers import AutoTokenizer

ORDER = Order.read()


class NullEnvironment(BaseTextEnv):  # type: ignore[misc]
    """Returns the same observation every time."""

    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        super().__init__()

    def step(self, action: str) -> dict[str, Any]:
        self.turns += 1
        return {
            "observations": [{"role": "user", "content": ORDER.observation}],
            "reward": 0.0,
            "done": self.turns >= ORDER.num_turns,
            "metadata": {},
        }


class Script:
    """Returns the same text every time, and yields to other episodes as a model would."""

    model_name = "script"
    seconds = 0.0

    def __init__(self, tokenizer: Any) -> None:
        self._ids = tokenizer.encode(ORDER.answer + "<|im_end|>", add_special_tokens=False)

    async def generate(self, input_batch: Any, model: str | None = None) -> dict[str, Any]:
        await asyncio.sleep(0)
        start = process_time()
        output = {
            "responses": [ORDER.answer],
            "response_ids": [list(self._ids)],
            "stop_reasons": ["stop"],
            "response_logprobs": [[0.0] * len(self._ids)],
        }
        self.seconds += process_time() - start
        return output

    async def finish_session(self, session: Any) -> None:
        """There is nothing to release."""


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(ORDER.tokenizer)
    config = GeneratorConfig(
        max_turns=ORDER.num_turns, max_input_length=2**31, use_cache_salt=False
    )
    config.sampling_params.logprobs = 1
    skyrl_gym.register(id="null", entry_point=f"{__name__}:NullEnvironment")
    script = Script(tokenizer)
    generator = SkyRLGymGenerator(config, SkyRLGymConfig(max_env_workers=0), script, tokenizer)

    def measure(num_episodes: int) -> tuple[float, float]:
        prompt = [{"role": "user", "content": ORDER.observation}]
        batch = {
            "prompts": [prompt] * num_episodes,
            "env_classes": ["null"] * num_episodes,
            "env_extras": [{} for _ in range(num_episodes)],
        }
        script.seconds, start = 0.0, process_time()
        output = asyncio.run(generator.generate(batch, disable_tqdm=True))
        took = process_time() - start
        sampled = sum(map(sum, output["loss_masks"]))
        if sampled != num_episodes * ORDER.num_turns * len(script._ids):
            sys.exit(f"{sampled} tokens are trained on, which is not what was played")
        return took, script.seconds

    time_turns(Report("SkyRL 0.3.0"), ORDER, measure).print()


if __name__ == "__main__":
    main()
