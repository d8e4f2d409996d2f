"""Attention to shared prefixes as the GPU computes it, with a plain kernel in place of CUDA's."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from turnwise.learner.fast import packed_attention
from turnwise.learner.fast.packed_attention import Episodes, episode_attention

HEADS, KEY_HEADS, WIDTH = 4, 2, 8


def scores_of(query, key, spans, scale, left):
    """[H, L, P] of each block, masked as the kernel masks: by the distance from the last key."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    for a, b, c, d in zip(*blocks(spans), strict=True):
        scores = torch.einsum("lhd,phd->hlp", query[a:b], key[c:d]) * scale
        distance = torch.arange(b - a)[:, None] + (d - c) - (b - a) - torch.arange(d - c)
        seen = (distance >= 0) & (distance <= (left if left >= 0 else d))
        scores = scores.masked_fill(~seen, -torch.inf)
        yield slice(a, b), slice(c, d), scores


def blocks(spans):
    queries, keys = spans.query_offsets.tolist(), spans.key_offsets.tolist()
    return queries[:-1], queries[1:], keys[:-1], keys[1:]


def flash(query, key, value, spans, scale, left):
    """What torch's kernel returns: output [N, H, D], log-sum-exps [H, N], and its random state."""
    output, totals = torch.zeros_like(query), query.new_zeros(query.shape[1], len(query))
    value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    for rows, context, scores in scores_of(query, key, spans, scale, left):
        totals[:, rows] = scores.logsumexp(-1)
        output[rows] = torch.einsum("hlp,phd->lhd", scores.softmax(-1), value[context])
    return output, totals, torch.zeros(2), torch.zeros(0)


def flash_backward(gradient, query, key, value, output, totals, seed, unused, spans, scale, left):
    """The gradients from a given output and log-sum-exp, as the kernel computes them."""
    groups = query.shape[1] // key.shape[1]
    to_query, to_key, to_value = (
        torch.zeros_like(query),
        *(torch.zeros_like(x.repeat_interleave(groups, 1)) for x in (key, value)),
    )
    keys, values = (x.repeat_interleave(groups, 1) for x in (key, value))
    inner = (gradient * output).sum(-1)
    for rows, context, scores in scores_of(query, key, spans, scale, left):
        probs = (scores - totals[:, rows, None]).exp()
        to_value[context] += torch.einsum("hlp,lhd->phd", probs, gradient[rows])
        to_probs = torch.einsum("lhd,phd->hlp", gradient[rows], values[context])
        to_scores = probs * (to_probs - inner[rows].T[..., None]) * scale
        to_query[rows] += torch.einsum("hlp,phd->lhd", to_scores, keys[context])
        to_key[context] += torch.einsum("hlp,lhd->phd", to_scores, query[rows])
    return to_query, *(x.unflatten(1, (-1, groups)).sum(2) for x in (to_key, to_value))


@pytest.fixture(autouse=True, scope="module")
def plain_kernel():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_attention, "_flash", flash)
        patch.setattr(packed_attention, "_flash_backward", flash_backward)
        yield patch


@st.composite
def trees(draw):
    """Segments; each begins after the prefix of an earlier one and some of its tokens, or alone."""
    lengths, prefixes, start = [], [], 0
    for number in range(draw(st.integers(2, 6))):
        length = draw(st.integers(1, 5))
        prefix = torch.zeros(0, dtype=torch.long)
        parent = draw(st.integers(-1, number - 1)) if number else -1
        if parent >= 0:
            begin = sum(lengths[:parent])
            kept = draw(st.integers(0, lengths[parent]))
            prefix = torch.cat([prefixes[parent], torch.arange(begin, begin + kept)])
        lengths.append(length)
        prefixes.append(prefix)
        start += length
    return lengths, prefixes


@settings(max_examples=30, deadline=None)
@given(trees(), st.sampled_from([None, 1, 3, 100]))
def test_the_kernel_s_outputs_and_gradients_are_those_of_plain_attention(tree, window):
    lengths, prefixes = tree
    generator = torch.Generator().manual_seed(0)
    sizes = [(1, heads, sum(lengths), WIDTH) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64) for s in sizes]
    for tensor in inputs:
        tensor.requires_grad_()
    gradient = torch.randn(sizes[0], generator=generator, dtype=torch.float64).transpose(1, 2)
    found = []
    for has_kernel in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packed_attention, "_has_kernel", lambda query, has=has_kernel: has)
            output, _ = episode_attention(
                None, *inputs, None, episodes=Episodes(lengths, prefixes), sliding_window=window
            )
            found.append((output, *torch.autograd.grad(output, inputs, gradient)))
    for got, expected in zip(*found, strict=True):
        # The gradients of keys are summed in float32.
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
