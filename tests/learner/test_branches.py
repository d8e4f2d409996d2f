"""Streams with branches: each token is computed once, in the context that it was sampled in."""

import functools

import pytest
import torch
from hypothesis import given, settings, strategies as st

from learner.episodes import double_model
from turnwise.chat import TokenStream
from turnwise.learner import PPOBatch
from turnwise.learner.packing import make_packs

TOKENS = st.lists(st.integers(0, 29), min_size=1, max_size=4)
SEGMENTS = st.lists(st.tuples(TOKENS, TOKENS, st.integers(0, 10**6)), min_size=1, max_size=4)


def make_stream(segments, prompt=(3, 1, 4)):
    """Turns that continue from anywhere: the end, the middle of a turn, the very beginning."""
    stream = TokenStream()
    for context, turn, choice in segments:
        after = choice % (len(stream) + 1)
        stream.begin_branch(after)
        stream.add_context([*(prompt if after == 0 else ()), *context])
        stream.add_turn(turn, [-0.5] * len(turn))
    return stream


def unrolled(stream):
    """Every turn as a stream of its own, behind all that was before it."""
    streams = []
    for start, end in stream.turns:
        alone = TokenStream()
        alone.add_context([i for a, b in stream.context(start) for i in stream.ids[a:b]])
        alone.add_turn(stream.ids[start:end], [-0.5] * (end - start))
        streams.append(alone)
    return streams


@functools.cache
def model_of(layout):
    return double_model("gpt2", layout=layout)  # a Llama rounds in its norms


def log_probs_and_gradient(model, streams):
    batch = PPOBatch.from_streams(streams)
    ids = batch.input_ids if model.shares_prefixes else None
    rows = torch.arange(len(streams))
    masks = (batch.attention_mask, batch.response_mask)
    found, total = [], torch.zeros((), dtype=torch.float64)
    packs = make_packs(*masks, rows, 12, ids, batch.branches)
    grid = torch.zeros(batch.input_ids.shape, dtype=torch.float64)
    for pack in packs:
        log_probs = model.forward_pack(batch.input_ids, pack).log_probs
        grid[pack.rows] = log_probs.detach()
        total = total + log_probs.sum()
    for stream, row in zip(streams, grid, strict=True):
        found += [row[start:end] for start, end in stream.turns]
    weights = [p for p in model.policy.parameters() if p.requires_grad]
    gradient = torch.autograd.grad(total, weights, allow_unused=True)
    return torch.cat(found), gradient, sum(pack.num_tokens for pack in packs)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@settings(max_examples=10)
@given(rows=st.lists(SEGMENTS, min_size=1, max_size=3))
def test_log_probs_and_gradients_are_those_of_each_turns_own_context(layout, rows):
    streams = [make_stream(segments) for segments in rows]
    model = model_of(layout)
    ours, gradient, num_tokens = log_probs_and_gradient(model, streams)
    alone = [one for stream in streams for one in unrolled(stream)]
    expected, expected_gradient, _ = log_probs_and_gradient(model, alone)
    assert num_tokens <= sum(map(len, streams)), "a tree costs its nodes, not its paths"
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-9)
    for a, b in zip(gradient, expected_gradient, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_the_parts_of_a_batch_keep_their_branches():
    stream = make_stream([([5], [6, 7], 0), ([8], [9], 4), ([2, 2], [1, 1], 5)])
    assert stream.branches
    batch = PPOBatch.from_streams([make_stream([([5], [6], 0)]), stream])
    assert batch.select(torch.tensor([1])).branches == [tuple(stream.branches)]
    assert batch.for_imitation().branches == batch.branches
    assert PPOBatch.from_streams([make_stream([([5], [6], 0)])]).branches is None
