"""A runner whose cache holds the tokens themselves: logits are a hash of a sequence's history.

Schedule, KV cache, prompt cache and decoding are the engine's own, and what they do to the cache
shows at once: a token that is lost, stale, or another sequence's gives other logits.
"""

import functools
import random

import torch

from inference.tiny_models import make_model
from turnwise.inference import sampling_log_probs
from turnwise.inference.local import LocalEngine
from turnwise.inference.local.attention import Packed
from turnwise.inference.local.kv_cache import KVCache, Segment
from turnwise.inference.sampling import choose_tokens

VOCAB_SIZE = 19
_TABLE = 3.0 * torch.randn(251, VOCAB_SIZE, generator=torch.Generator().manual_seed(5))
_FACTORS = (torch.arange(1, 5000) ** 2 % 251).double()


def next_logits(history):
    """Logits after a sequence of token ids [V]."""
    history = torch.as_tensor(history, dtype=torch.float64) + 1
    return _TABLE[int(history.dot(_FACTORS[: len(history)])) % 251]


class HistoryRunner:
    """Stands in for `Runner`; `sizes` and `block` as it has them in deterministic mode."""

    device = torch.device("cpu")
    is_fused = False

    def __init__(self, model, *, cache_tokens, max_tokens, deterministic, **_):
        self.kv_cache = KVCache(cache_tokens, 1, 1, 1, torch.float32, self.device)
        self.sizes = [1, 4, 16] if deterministic else None
        self.max_forward_tokens = self.sizes and self.sizes[-1]
        self.block = 8 if deterministic else None

    def padded_size(self, number):
        return number if self.sizes is None else next(s for s in self.sizes if s >= number)

    def forward(self, chunks):
        ids = [token for chunk in chunks for token in chunk.ids]
        spans = [(c.region, c.past, len(c.ids)) for c in chunks]
        positions = [past + i for _, past, number in spans for i in range(number)]
        slots = [region + past + i for region, past, number in spans for i in range(number)]
        last = torch.tensor([number for _, _, number in spans]).cumsum(0) - 1
        rows = [int(row) for row, chunk in zip(last, chunks, strict=True) if chunk.wants_logits]
        packed = Packed([Segment(*span) for span in spans], self.kv_cache, torch.tensor(slots))
        return self.forward_packed(torch.tensor(ids), torch.tensor(positions), packed, rows)

    def forward_packed(self, ids, positions, packed, rows=None):
        cells = self.kv_cache.storage[0, 0, :, 0, 0]
        cells[packed.slots] = ids.float()
        at, starts = positions.tolist(), (packed.slots - positions).tolist()
        wanted = range(len(at)) if rows is None else rows
        logits = [next_logits(cells[starts[i] : starts[i] + at[i] + 1]) for i in wanted]
        return torch.stack(logits) if logits else torch.empty(0, VOCAB_SIZE)

    def take_new_weights(self):
        return False


@functools.cache
def _model():
    """Never computed with: engines ask it for its sizes."""
    model = make_model()
    model.resize_token_embeddings(VOCAB_SIZE)
    return model


def make_engine(monkeypatch, kind=LocalEngine, **options):
    monkeypatch.setattr("turnwise.inference.local.engine.Runner", HistoryRunner)
    return kind(_model(), **options)


def sampled_alone(request, number):
    """The first tokens that a request draws, from its history alone."""
    rng, history = random.Random(request.seed), list(request.prompt_ids)
    for _ in range(number):
        log_probs = sampling_log_probs(next_logits(history)[None], [request.sampling])
        ids, _ = choose_tokens(log_probs, [request.sampling], [rng.random()])
        history += ids.tolist()
    return history[len(request.prompt_ids) :]


def prompt_of(length, seed):
    rng = random.Random(seed)
    return [rng.randrange(VOCAB_SIZE) for _ in range(length)]
