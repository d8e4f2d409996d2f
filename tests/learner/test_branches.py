"""Streams with branches: each token is computed once, in the context that it was sampled in."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from inference.tiny_models import make_model
from learner.episodes import double_model
from turnwise.chat import TokenStream
from turnwise.learner import Learner, PPOBatch
from turnwise.learner.packing import make_packs

TOKENS = st.lists(st.integers(0, 29), min_size=1, max_size=4)
SEGMENTS = st.lists(st.tuples(TOKENS, TOKENS, st.integers(0, 10**6)), min_size=1, max_size=4)


def make_stream(segments, prompt=(3, 1, 4)):
    """Turns that continue from anywhere: the end, the middle of a turn, the very beginning."""
    stream = TokenStream()
    for context, turn, choice in segments:
        stream.begin_branch(choice % (len(stream) + 1))
        at_start = not stream.branches if not len(stream) else stream.branches[-1:] == [
            (len(stream), 0)
        ]
        stream.add_context([*(prompt if at_start else ()), *context])
        stream.add_turn(turn, [-0.5] * len(turn))
    return stream


def reference_log_probs(model, stream):
    """Of each sampled token after its own context, one forward each."""
    found = {}
    for start, end in stream.turns:
        for token in range(start, end):
            spans = stream.context(token)
            context = [i for a, b in spans for i in stream.ids[a:b]]
            logits = model(input_ids=torch.tensor([context])).logits[0, -1]
            found[token] = logits.log_softmax(-1)[stream.ids[token]]
    return found


@pytest.mark.parametrize("layout", ["packed", "padded"])
@settings(max_examples=15)
@given(rows=st.lists(SEGMENTS, min_size=1, max_size=3), budget=st.sampled_from([8, 10_000]))
def test_log_probs_and_gradients_are_those_of_each_tokens_own_context(layout, rows, budget):
    streams = [make_stream(segments) for segments in rows]
    batch = PPOBatch.from_streams(streams)
    model = double_model("llama", layout=layout)
    learner = Learner(model)
    packs = make_packs(
        batch.attention_mask,
        batch.response_mask,
        torch.arange(len(streams)),
        budget,
        batch.input_ids if model.shares_prefixes else None,
        batch.branches,
    )
    if not model.shares_prefixes:
        assert sum(pack.num_tokens for pack in packs) == sum(map(len, streams))
    total = torch.zeros((), dtype=torch.float64)
    expected = torch.zeros_like(total)
    scores = learner.score(batch).log_probs
    for row, stream in enumerate(streams):
        for token, log_prob in reference_log_probs(model.policy, stream).items():
            assert abs(float(scores[row, token] - log_prob)) < 1e-9
            expected = expected + log_prob
    for pack in packs:
        total = total + model.forward_pack(batch.input_ids, pack).log_probs.sum()
    weights = [p for p in model.policy.parameters() if p.requires_grad]
    got = torch.autograd.grad(total, weights, allow_unused=True)
    wanted = torch.autograd.grad(expected, weights, allow_unused=True)
    for a, b in zip(got, wanted, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_an_update_and_imitation_take_branches():
    stream = make_stream([([5], [6, 7], 0), ([8], [9], 4), ([2, 2], [1, 1], 5)])
    assert stream.branches
    batch = PPOBatch.from_streams([stream, stream])
    assert batch.select(torch.tensor([1])).branches == [tuple(stream.branches)]
    assert batch.for_imitation().branches == batch.branches
    assert PPOBatch.from_streams([TokenStream()] * 0 or [make_stream([([5], [6], 0)])]).branches is None
