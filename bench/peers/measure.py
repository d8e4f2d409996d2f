"""What every side of bench/train_step.py is asked to do, and how it reports.

Each side runs in a process and an environment of its own: only the standard library is used here.
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

# Writes tool calls too, which TRL asks of a template before it plays several turns.
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
    """One kind of training step, the same for all; turns do not end early on any side."""

    name: str
    num_prompts: int
    group_size: int
    prompt_tokens: int
    """Of the opening, with what the chat template adds."""
    new_tokens: int
    """Sampled in a turn."""
    num_turns: int = 1
    observation_tokens: int = 0
    """Between two turns, with what the chat template adds."""

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
    """What a side reads from its standard input."""

    work: Work
    model: str
    """A folder with the model and its tokenizer."""
    num_steps: int
    """Those of the warm-up included."""
    num_threads: int
    clock: str = "wall"
    """`cpu`: the processor's time, for a busy machine; meant for one thread."""
    learning_rate: float = 1e-5
    options: dict[str, Any] = field(default_factory=dict)
    """A side's own."""

    @classmethod
    def read(cls) -> Order:
        data = json.load(sys.stdin)
        return cls(**{**data, "work": Work(**data["work"])})

    def now(self) -> float:
        """Seconds since some moment."""
        return time.process_time() if self.clock == "cpu" else time.perf_counter()

    def write(self) -> str:
        return json.dumps(dataclasses.asdict(self))


@dataclass
class Report:
    """What a side prints as its last line."""

    name: str
    imported_mib: float
    """Resident after the imports, before the model."""
    peak_mib: float = 0.0
    step: list[float] = field(default_factory=list)
    """Seconds of each step, everything included."""
    generate: list[float] = field(default_factory=list)
    """Of these, playing the episodes."""
    num_sampled: list[int] = field(default_factory=list)
    """Tokens that entered the loss of each step."""
    num_tokens: list[int] = field(default_factory=list)
    """All tokens of its episodes."""
    note: str = ""
    """What this side did otherwise."""

    def print(self) -> None:
        self.peak_mib = memory_mib("VmHWM")
        print(f"\n{json.dumps(dataclasses.asdict(self))}", flush=True)


def memory_mib(kind: str = "VmRSS") -> float:
    """Resident memory of this process now (VmRSS) or at most so far (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"the system does not tell {kind}")


def digits(num: int, seed: int) -> str:
    """A text of as many tokens, for tokenizers that read digits one by one."""
    return "".join(random.Random(seed).choices("0123456789", k=num))


def fitted(num_tokens: int, count: Callable[[str], int], seed: int) -> str:
    """The text for a message that comes to so many tokens with the template around it."""
    text = digits(num_tokens - count(digits(1, seed)) + 1, seed)
    if count(text) != num_tokens:
        raise SystemExit(f"a text of {num_tokens} tokens became one of {count(text)}")
    return text


def earned(texts: Sequence[str]) -> float:
    """A reward that differs from one episode to the next: the share of letters up to m."""
    letters = [letter for letter in "".join(texts).lower() if letter.isalpha()]
    return sum(letter <= "m" for letter in letters) / max(len(letters), 1)
