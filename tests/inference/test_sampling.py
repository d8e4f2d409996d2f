"""Sampling follows the distribution that it says it follows."""

import math
import random

import pytest
import torch
from hypothesis import given, settings, strategies as st

from turnwise.inference import SamplingParams, choose_tokens, sampling_log_probs

LOGITS = torch.tensor([[2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0]])
SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=3.0),
    SamplingParams(top_k=3),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.2),
    SamplingParams(temperature=1.7, top_k=5, top_p=0.9, min_p=0.1),
]


def reference(logits, params):
    """The distribution by plain loops in float64."""
    temperature = params.temperature or 1.0
    weights = [math.exp(x / temperature) for x in logits]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    kept = [i for i in order if not params.top_k or weights[i] >= weights[order[params.top_k - 1]]]
    total, mass, nucleus = sum(weights[i] for i in kept), 0.0, []
    for i in kept:
        if mass < params.top_p * total or (nucleus and weights[i] == weights[nucleus[-1]]):
            nucleus.append(i)
        mass += weights[i]
    final = [i for i in nucleus if weights[i] >= params.min_p * weights[order[0]] * (1 - 1e-6)]
    total = sum(weights[i] for i in final)
    return [weights[i] / total if i in final else 0.0 for i in range(len(weights))]


@pytest.mark.parametrize("params", SETTINGS)
def test_log_probs_are_those_of_the_filtered_distribution(params):
    probabilities = sampling_log_probs(LOGITS, [params]).exp()[0]
    expected = torch.tensor(reference(LOGITS[0].tolist(), params))
    torch.testing.assert_close(probabilities, expected, atol=1e-6, rtol=0)


@settings(deadline=None, max_examples=100)
@given(
    logits=st.lists(st.floats(-8, 8, width=16), min_size=2, max_size=12, unique=True),
    temperature=st.floats(0.1, 5),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.05, 0.99),
    min_p=st.floats(0.0, 0.9),
)
def test_any_filter_leaves_a_distribution_with_the_best_token_in_it(
    logits, temperature, top_k, top_p, min_p
):
    params = SamplingParams(temperature, top_k, top_p, min_p)
    log_probs = sampling_log_probs(torch.tensor([logits]), [params])[0]
    assert log_probs.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    assert log_probs.argmax() == max(range(len(logits)), key=logits.__getitem__)
    assert not log_probs.isnan().any()
    if top_k:
        assert int(log_probs.isfinite().sum()) <= max(top_k, 1)


@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0])
def test_filters_on_a_vocabulary_too_large_to_sort(spread):
    """Looking at the likely few first gives what sorting everything gives."""
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(3)) * spread
    for params in [
        SamplingParams(top_p=0.5),
        SamplingParams(top_p=0.999),
        SamplingParams(top_k=3000, top_p=0.9),
        SamplingParams(top_k=10, min_p=0.2),
        SamplingParams(min_p=0.01),
    ]:
        got = sampling_log_probs(logits, [params])[0].exp()
        expected = torch.tensor(reference(logits[0].tolist(), params))
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)
        assert torch.equal(got > 0, expected > 0)


@pytest.mark.parametrize("width", [8, 16_385, 49_152])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_p=0.3)])
def test_draws_invert_the_cumulated_mass(width, params):
    """Also block by block, as in a large vocabulary: as adding up every one in float64 does."""
    rng = torch.Generator().manual_seed(width)
    logits = 4 * torch.randn(1, width, generator=rng)
    log_probs = sampling_log_probs(logits, [params]).expand(500, -1)
    uniforms = torch.rand(500, generator=rng, dtype=torch.float64)
    uniforms[0], uniforms[1] = 0.0, 1.0 - 2**-53
    ids, chosen = choose_tokens(log_probs, [params] * 500, uniforms.tolist())
    assert chosen.isfinite().all()
    reached = log_probs[0].double().exp().cumsum(0)
    reached /= reached[-1].clone()
    # A point at the very edge of a token may fall to its neighbour.
    assert (reached[ids] > uniforms - 1e-6).all()
    assert (torch.cat([torch.zeros(1), reached])[ids] < uniforms + 1e-6).all()


def test_greedy_takes_the_most_likely_token_and_keeps_the_models_log_prob():
    params = SamplingParams(temperature=0.0, top_k=2)
    log_probs = sampling_log_probs(LOGITS, [params])
    ids, chosen = choose_tokens(log_probs, [params], [0.999])
    assert ids.item() == 0
    torch.testing.assert_close(chosen, LOGITS.log_softmax(-1)[:, 0])


@pytest.mark.parametrize("vocab_size", [97, 3000, 20000])  # few, more than are sorted, in blocks
def test_a_row_is_drawn_alike_in_any_batch(vocab_size):
    rng = random.Random(vocab_size)
    params = [*SETTINGS, SamplingParams(0.0), SamplingParams(top_k=2500, top_p=0.7)]
    logits = 2.0 * torch.randn(len(params), vocab_size, generator=torch.Generator().manual_seed(0))
    uniforms = [rng.random() for _ in params]

    def draw(rows):
        chosen = [params[i] for i in rows]
        log_probs = sampling_log_probs(logits[rows], chosen)
        return choose_tokens(log_probs, chosen, [uniforms[i] for i in rows])

    alone = [draw([i]) for i in range(len(params))]
    for _ in range(20):
        rows = rng.sample(range(len(params)), rng.randrange(2, len(params) + 1))
        for i, token, log_prob in zip(rows, *draw(rows), strict=True):
            assert token == alone[i][0][0]
            assert log_prob == alone[i][1][0]
