"""The engine on an SGLang server: tokens, log-probs, stops, seeds, scores."""

import asyncio
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from inference.sglang_cases import GREEDY, TOKENIZER, VOCABULARY, gap, make_model, sample, serving
from inference.tiny_models import plain_log_probs
from turnwise import ConfigError
from turnwise.inference import FinishReason, GenerationRequest, SamplingParams
from turnwise.inference.sglang import kept_log_mass

FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=0.7, top_p=0.8),
    SamplingParams(top_k=7),
    SamplingParams(temperature=1.5, top_k=1),
    SamplingParams(min_p=0.3),
    SamplingParams(temperature=0.6, top_p=0.9, min_p=0.1),
    GREEDY,
    SamplingParams(temperature=0.0, top_p=0.5),
]


def test_log_probs_are_those_of_the_distribution_after_the_filters():
    with serving(num_top_log_probs=VOCABULARY) as (_, server, engine):
        requests = [GenerationRequest([7 + i, 8], 30, params) for i, params in enumerate(FILTERS)]
        results = sample(engine, *requests)
        for request, result in zip(requests, results, strict=True):
            assert len(result.ids) == 30
            assert result.finish_reason is FinishReason.LENGTH
            assert gap(make_model(), request, result) < 1e-4
        assert engine.log_prob_slack == 0.0
        rids = {body["rid"] for body in server.asked("/generate")}
        assert len(rids) == len(requests)
        assert len({len(rid) for rid in rids}) == 1  # an abort takes all that begin with its id


def test_with_few_top_log_probs_the_gap_stays_within_what_the_engine_says():
    with serving(num_top_log_probs=4) as (_, _, engine):
        for params in (SamplingParams(top_p=0.95), SamplingParams(temperature=1.5, min_p=0.02)):
            request = GenerationRequest([7, 8], 40, params)
            difference = gap(make_model(), request, sample(engine, request))
            assert 1e-4 < difference <= engine.log_prob_slack + 1e-4


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_top=st.integers(1, 20),
    params=st.builds(
        SamplingParams,
        temperature=st.just(1.0),
        top_k=st.integers(0, 25),
        top_p=st.floats(0.05, 1.0),
        min_p=st.sampled_from([0.0, 0.05, 0.4]),
    ),
)
def test_the_kept_mass_lies_between_its_bounds(seed, num_top, params):
    generator = torch.Generator().manual_seed(seed)
    ordered = torch.softmax(2 * torch.randn(20, generator=generator, dtype=torch.float64), 0)
    ordered = ordered.sort(descending=True).values
    kept = ordered.cumsum(0) - ordered <= params.top_p
    kept &= ordered >= ordered[0] * params.min_p
    if params.top_k:
        kept[params.top_k :] = False
        num_top = max(num_top, min(params.top_k, 20))  # as many are asked for
    exact = math.log(ordered[kept].sum())
    low, high = kept_log_mass(ordered.log().tolist()[:num_top], params, 20, is_joint=True)
    assert low - 1e-9 <= exact <= high + 1e-9
    whole = kept_log_mass(ordered.log().tolist(), params, 20, is_joint=True)
    assert whole == pytest.approx((exact, exact), abs=1e-9)
    if params.top_k:
        assert low == high


def test_top_p_after_top_k_is_measured_on_what_top_k_left_where_that_is_how_it_samples():
    top = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    params = SamplingParams(top_k=2, top_p=0.5)
    assert kept_log_mass(top, params, 4, is_joint=True)[0] == pytest.approx(math.log(0.7))
    assert kept_log_mass(top, params, 4, is_joint=False)[0] == pytest.approx(math.log(0.4))


def test_an_end_token_of_the_model_stops_nothing_that_was_not_asked_for():
    with serving() as (runtime, server, engine):
        free = list(sample(engine, GenerationRequest([5, 6], 12, GREEDY)).ids)
        runtime.tokenizer = SpecialEnd(free[2])
        unused = next(i for i in range(VOCABULARY) if i not in free)
        for stops in (frozenset(), frozenset({unused})):
            request = GenerationRequest([5, 6], 12, GREEDY, stop_ids=stops)
            result = sample(engine, request)
            assert list(result.ids) == free
            assert result.finish_reason is FinishReason.LENGTH
            assert gap(make_model(), request, result) < 1e-4
        # Only with stop tokens of our own does SGLang stop there, and is asked to go on.
        assert len(server.asked("/generate")) == 2 + 1 + free.count(free[2])


class SpecialEnd:
    """The tokenizer with another end token."""

    def __init__(self, end):
        self.eos_token_id = end

    def __getattr__(self, name):
        return getattr(TOKENIZER, name)


def test_a_stop_string_spelt_in_more_tokens_than_sglang_looks_at_still_ends_the_turn():
    with serving() as (runtime, _, engine):
        letters = TOKENIZER.encode("h") + TOKENIZER.encode("e") + TOKENIZER.encode("l")
        spelling = [*letters, letters[-1], *TOKENIZER.encode("o"), *TOKENIZER.encode(" there")]
        assert len(TOKENIZER.encode("hello")) + 1 < 5
        runtime.model = Recites(runtime.model, spelling)
        result = sample(engine, GenerationRequest([5, 6], 12, GREEDY, stop_strings=("hello",)))
        assert TOKENIZER.decode(result.ids) == "hello"
        assert len(result.ids) == len(result.log_probs) == 5
        assert result.finish_reason is FinishReason.STOP


class Recites:
    """A model that says what it is told to, after a prompt of two."""

    def __init__(self, model, ids):
        self.config, self.ids = model.config, ids

    def __call__(self, ids):
        logits = torch.zeros(1, ids.shape[1], VOCABULARY)
        logits[0, -1, self.ids[(ids.shape[1] - 2) % len(self.ids)]] = 50.0
        return type("Output", (), {"logits": logits})


def test_scores_are_those_of_a_plain_forward():
    with serving() as (_, _, engine):
        ids = [5, 9, 3, 7, 60, VOCABULARY - 1, 8]
        request = GenerationRequest(ids[:3], 4)
        expected = plain_log_probs(make_model(), request, ids[3:]).tolist()
        sample(engine, GenerationRequest(ids, 1))  # what it has cached must not matter
        assert asyncio.run(engine.score(ids, 3)) == pytest.approx(expected, abs=1e-4)
        assert asyncio.run(engine.score(ids, 7)) == []
        with pytest.raises(ConfigError, match="start=0"):
            asyncio.run(engine.score(ids, 0))


def test_a_seed_counts_where_inference_is_deterministic():
    with serving(deterministic=True) as (_, _, engine):
        requests = [GenerationRequest([5, 6], 12, seed=seed) for seed in (1, 1, 2)]
        first, second, third = sample(engine, *requests)
        assert list(first.ids) == list(second.ids) != list(third.ids)
