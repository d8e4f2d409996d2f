"""A model that writes what a script says: a coding agent's turns, for the tools of each client.

The ids are the script's and the log-probs the model's, so that a run can be trained on them.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.inference import FinishReason, GenerationResult
from turnwise.inference.transformers import TransformersEngine
from turnwise.models import load_tokenizer
from turnwise.tools import ToolCall, get_parser

ROOT = Path(__file__).resolve().parents[2]
BUG, FIX, WRONG = "a - b", "a + b", "a * b"
TASK = "add(a, b) in sums.py returns the wrong number. Fix it."


def edits(read, edit, path, old, new, **more):
    """Read the file, replace a text in it; the names are those of a client's tools."""
    return [
        (read, {path: "{work}/sums.py"}),
        (edit, {path: "{work}/sums.py", old: f"return {BUG}", new: "return {new}", **more}),
    ]


SCRIPTS = {
    "exec_command(cmd": [
        ("exec_command", {"cmd": "cat sums.py"}),
        ("exec_command", {"cmd": f"sed -i 's/{BUG}/{{new}}/' sums.py"}),
    ],
    "Edit(file_path": edits("Read", "Edit", "file_path", "old_string", "new_string"),
    "edit(file_path": edits("read_file", "edit", "file_path", "old_string", "new_string"),
    "replace(": edits(
        "read_file", "replace", "file_path", "old_string", "new_string", instruction="Fix the sum."
    ),
    "edit(filePath": edits("read", "edit", "filePath", "oldString", "newString"),
}
"""By how the prompt describes a tool that only this client has."""


@dataclass
class Script:
    """What an engine has to write, and what it was asked and wrote so far."""

    works: list[str] = field(default_factory=list)
    """The folders of the episodes: every second one gets the wrong fix."""
    sampled: list[tuple[list[int], list[int], list[float]]] = field(default_factory=list)

    def next_turn(self, prompt: str) -> str:
        """The first turn of the script that this conversation does not have yet."""
        words = [word for word in SCRIPTS if word in prompt]
        work = re.search(r"(/[^\s\"'`]*/turnwise-agent-[^/\s]+/work)\b", prompt)
        if not words or work is None:  # such as a title for the conversation
            return "Nothing to add."
        if work[1] not in self.works:
            self.works.append(work[1])
        new = (FIX, WRONG)[self.works.index(work[1]) % 2]
        for name, arguments in SCRIPTS[words[-1]]:
            given = {
                key: value.replace("{work}", work[1]).replace("{new}", new)
                for key, value in arguments.items()
            }
            *_, last = given.values()
            # Some clients add arguments to a call that they send back.
            if f'"name": "{name}"' not in prompt or json.dumps(last) not in prompt:
                return get_parser("hermes").render(ToolCall(name, given))
        return "Fixed."


class ScriptedCoder(TransformersEngine):
    """Writes what the script says, with the log-probs of the model."""

    script = Script()

    async def sample(self, request):
        prompt = list(request.prompt_ids)
        text = self.tokenizer.decode(prompt, skip_special_tokens=False)
        written = self.script.next_turn(text)
        ids = self.tokenizer.encode(written, add_special_tokens=False)
        ids.append(self.tokenizer.eos_token_id)
        log_probs = list(await self.score([*prompt, *ids], len(prompt)))
        self.script.sampled.append((prompt, ids, log_probs))
        return GenerationResult(ids, log_probs, FinishReason.STOP, self.weight_version)


def make_model():
    """A model that reads the long prompts of these clients quickly, in long tokens."""
    texts = (path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    tokenizer = load_tokenizer("tiny").train_new_from_iterator(texts, 8000)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=200_000,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval(), tokenizer
