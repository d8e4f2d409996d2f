"""An engine that writes thoughts, words and ends at random, and remembers what it was given."""

import random

import torch

from turnwise.inference import FinishReason, GenerationResult, ScriptedEngine
from turnwise.learner import Learner, PolicyValueModel

PIECES = ("<think>", "</think>", "hello", "bed", " 5", "\n", "higher than 512")


class Recorder(ScriptedEngine):
    def __init__(self, tokenizer, pieces=PIECES, ends=0.1):
        super().__init__(tokenizer)
        self.requests = []
        self._ends = ends
        self._pieces = [tokenizer.encode(piece, add_special_tokens=False) for piece in pieces]

    async def sample(self, request):
        rng = random.Random(request.seed)
        ids = []
        while len(ids) < request.max_tokens:
            if rng.random() < self._ends:
                ids.append(min(request.stop_ids))
                break
            ids += rng.choice(self._pieces)
        ids = ids[: request.max_tokens]
        is_stopped = ids[-1] in request.stop_ids
        reason = FinishReason.STOP if is_stopped else FinishReason.LENGTH
        log_probs = [-rng.random() for _ in ids]
        self.requests.append((list(request.prompt_ids), ids, log_probs))
        return GenerationResult(ids, log_probs, reason, self.weight_version)


def check_log_probs(model, batch):
    """The learner computes the log-probs that the engine sampled with."""
    ours = Learner(PolicyValueModel(model, None)).score(batch).log_probs[batch.response_mask]
    theirs = batch.sampler_log_probs[batch.response_mask]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)


def check_exact(stream, requests):
    """Every sampled token is trained on once, in the context in which it was sampled."""
    places = [place for place, is_sampled in enumerate(stream.mask) if is_sampled]
    assert len(places) == sum(len(ids) for _, ids, _ in requests)
    for prompt, ids, log_probs in requests:
        own, places = places[: len(ids)], places[len(ids) :]
        for number, place in enumerate(own):
            context = [i for a, b in stream.context(place) for i in stream.ids[a:b]]
            assert context == [*prompt, *ids[:number]], "not the context of the sampling"
        assert [stream.ids[place] for place in own] == ids
        assert [stream.log_probs[place] for place in own] == log_probs
