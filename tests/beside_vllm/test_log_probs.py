"""What vLLM samples, and its log-probs, beside a plain forward of the same weights."""

import asyncio
import random

import torch

from beside_vllm.cases import (
    CONTEXT,
    SAMPLING,
    TOLERANCE,
    make_prompt,
    make_requests,
    sample,
    sample_all,
)
from turnwise.inference import FinishReason, GenerationRequest


def test_log_probs_are_those_of_a_plain_forward_under_every_option(either, first):
    """Thousands of tokens, all options in one batch: none may change its neighbours."""
    requests = [
        request
        for sampling in SAMPLING.values()
        for request in make_requests(12, 40, sampling, stop_ids=frozenset())
    ]
    random.Random(0).shuffle(requests)
    results = sample_all(either, requests)
    assert sum(len(result.ids) for result in results) == len(requests) * 40 > 4000
    for request, result in zip(requests, results, strict=True):
        assert result.finish_reason is FinishReason.LENGTH
        assert first.gap(request, result) < TOLERANCE, request.sampling


def test_the_same_seed_gives_the_same_tokens_alone_and_in_company(engine):
    requests = make_requests(20, 25)
    together = sample_all(engine, requests)
    for i in (0, 7, 13):
        alone = sample(engine, requests[i])
        assert list(alone.ids) == list(together[i].ids)
        torch.testing.assert_close(
            torch.tensor(alone.log_probs), torch.tensor(together[i].log_probs), atol=1e-4, rtol=0
        )
    others = [
        GenerationRequest(request.prompt_ids, 25, request.sampling, seed=request.seed + 500)
        for request in requests
    ]
    different = [
        list(one.ids) != list(two.ids)
        for one, two in zip(together, sample_all(engine, others), strict=True)
    ]
    assert all(different)


def test_scores_are_log_probs_at_temperature_one(either, first):
    """Up to a full context, and beside turns that are being sampled."""
    cases = [(make_prompt(2, 1), 1), (make_prompt(60, 2), 17), (make_prompt(CONTEXT, 3), 2000)]

    async def all_at_once():
        turns = [either.sample(request) for request in make_requests(5, 20)]
        scores = [either.score(ids, start) for ids, start in cases]
        return await asyncio.gather(*scores, *turns)

    answers = asyncio.run(all_at_once())
    for (ids, start), scores in zip(cases, answers[:3], strict=True):
        log_probs = torch.log_softmax(first.logits(ids)[:-1], -1)
        expected = log_probs.gather(1, torch.tensor(ids[1:])[:, None])[start - 1 :, 0]
        torch.testing.assert_close(torch.tensor(scores), expected, atol=TOLERANCE, rtol=0)
    for request, result in zip(make_requests(5, 20), answers[3:], strict=True):
        assert first.gap(request, result) < TOLERANCE
