"""The work and the report of every side of bench/train_step.py.

Each side runs in its own process and Python environment: only the standard library is used here.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# It renders tool calls, which TRL requires of a template for several turns.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] -%}
{{ call.function.name + ' ' + call.function.arguments | tojson }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""


@dataclass(frozen=True)
class Work:
    """One kind of training step, the same for all sides; no turn ends early."""

    name: str
    num_prompts: int
    group_size: int
    prompt_tokens: int
    """Tokens of the first prompt, including the chat template's."""
    new_tokens: int
    """Tokens sampled in each turn."""
    num_turns: int = 1
    observation_tokens: int = 0
    """Tokens between two turns, including the chat template's."""

    @property
    def num_episodes(self) -> int:
        return self.num_prompts * self.group_size

    @property
    def num_sampled(self) -> int:
        """Tokens that are trained on in a step."""
        return self.num_episodes * self.num_turns * self.new_tokens

    @property
    def episode_tokens(self) -> int:
        between = (self.num_turns - 1) * self.observation_tokens
        return self.prompt_tokens + self.num_turns * self.new_tokens + between


@dataclass(frozen=True)
class Order:
    """The order that a side reads from its standard input."""

    work: Work
    model: str
    """The folder of the model and its tokenizer."""
    num_steps: int
    """Steps including the warm-up."""
    num_threads: int
    clock: str = "wall"
    """`cpu` measures CPU time, for a loaded machine and one thread."""
    learning_rate: float = 1e-5
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of this side only."""

    @classmethod
    def read(cls) -> Order:
        data = json.load(sys.stdin)
        return cls(**{**data, "work": Work(**data["work"])})

    def now(self) -> float:
        """Returns seconds of the chosen clock."""
        return time.process_time() if self.clock == "cpu" else time.perf_counter()

    def write(self) -> str:
        return json.dumps(dataclasses.asdict(self))


@dataclass
class Report:
    """The report that a side prints as its last line."""

    name: str
    imported_mib: float
    """Memory resident after the imports, before the model is loaded."""
    peak_mib: float = 0.0
    step: list[float] = field(default_factory=list)
    """Seconds of each whole step."""
    generate: list[float] = field(default_factory=list)
    """Seconds of each step spent on playing episodes."""
    num_sampled: list[int] = field(default_factory=list)
    """Tokens in the loss of each step."""
    num_tokens: list[int] = field(default_factory=list)
    """All tokens of the step's episodes."""
    note: str = ""
    """What this side does differently."""

    def print(self) -> None:
        self.peak_mib = memory_mib("VmHWM")
        print(f"\n{json.dumps(dataclasses.asdict(self))}", flush=True)


def memory_mib(kind: str = "VmRSS") -> float:
    """Returns the resident memory of this process: now (VmRSS) or its peak (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {kind}")


def digits(num: int, seed: int) -> str:
    """Returns a text of `num` tokens, for tokenizers that encode digits one by one."""
    return "".join(random.Random(seed).choices("0123456789", k=num))


def fitted(num_tokens: int, count: Callable[[str], int], seed: int) -> str:
    """Returns a message text that has `num_tokens` tokens with the chat template around it."""
    text = digits(num_tokens - count(digits(1, seed)) + 1, seed)
    if count(text) != num_tokens:
        raise SystemExit(f"a text of {num_tokens} tokens became one of {count(text)}")
    return text


def earned(texts: Sequence[str]) -> float:
    """Returns a reward that differs between episodes: the share of letters up to m."""
    letters = [letter for letter in "".join(texts).lower() if letter.isalpha()]
    return sum(letter <= "m" for letter in letters) / max(len(letters), 1)
