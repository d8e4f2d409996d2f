"""A tiny model that calls tools: it has imitated an expert for some seconds.

Which turn comes next follows from the end of the last message, and the model sees no further back
than its sliding window: it plays the same task behind every client, whatever that writes around it.
"""

import random
import string
from pathlib import Path

import torch
from transformers import MistralConfig, MistralForCausalLM

from beside_agents.expert import EXPERT
from turnwise.chat import ChatFormat, TokenStream
from turnwise.learner import Learner, PolicyValueModel, PPOBatch
from turnwise.models import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 65_536,
    "sliding_window": 96,
    "initializer_range": 128**-0.5,
}


# Words and code, as the prompts of clients have them.
_TEXT = "".join(path.read_text("utf-8") for path in (Path(__file__), ROOT / "LICENSE"))


def practise(seed=0):
    """Return the model and its tokenizer, after it has imitated the expert."""
    tokenizer = load_tokenizer("tiny")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = MistralConfig(vocab_size=len(tokenizer), **SHAPE)
        model = MistralForCausalLM(config).eval()
    chat, rng = ChatFormat(tokenizer), random.Random(seed)
    learner = Learner(PolicyValueModel(model, None))
    for learning_rate in [4e-3] * 60 + [2e-3] * 60 + [5e-4] * 20:
        streams = [_turn(chat, rng, end) for end in EXPERT for _ in range(2)]
        metrics = learner.imitate(PPOBatch.from_streams(streams), learning_rate)
    assert metrics["policy_loss"] < 0.01, metrics
    return model, tokenizer


def _turn(chat, rng, end):
    """The expert's turn after a message that ends so, in a window full of other text."""
    length = rng.randrange(96)
    start = rng.randrange(len(_TEXT) - length)
    before = _TEXT[start : start + length]
    if rng.random() < 0.5:
        before = "".join(rng.choices(string.printable, k=length))
    messages = [{"role": "user", "content": before}]
    if rng.random() < 0.5:
        messages.append({"role": "assistant", "content": EXPERT[rng.choice(list(EXPERT))]})
        messages.append({"role": rng.choice(["user", "tool"]), "content": end})
    else:
        messages[0]["content"] += end
    stream = TokenStream()
    stream.add_context(chat.prompt_ids(messages))
    ids = chat.answer_ids(EXPERT[end])
    stream.add_turn(ids, [0.0] * len(ids))
    return stream
