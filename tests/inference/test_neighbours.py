"""What a request draws does not depend on how the requests beside it are sampled."""

import random
from functools import partial

import pytest
import torch

from chat.families import make_format
from inference.tiny_models import make_model, run_all
from turnwise.inference import GenerationRequest, SamplingParams, sampling_log_probs
from turnwise.inference.local import LocalEngine
from turnwise.inference.sampling import choose_tokens
from turnwise.inference.transformers import TransformersEngine

PARAMS = [
    SamplingParams(),
    SamplingParams(0.0),
    SamplingParams(0.5),
    SamplingParams(top_k=3),
    SamplingParams(1.7, top_k=60),
    SamplingParams(top_p=0.6),
    SamplingParams(min_p=0.2),
    SamplingParams(0.8, top_k=30, top_p=0.9, min_p=0.05),
]


def make_neighbour(rng, number):
    """A request that is sampled in some other way than the one that is watched."""
    stops = {rng.randrange(90) for _ in range(rng.choice([0, 0, 5]))}
    return GenerationRequest(
        [rng.randrange(90) for _ in range(rng.randrange(1, 40))],
        rng.randrange(1, 20),
        rng.choice(PARAMS),
        stop_ids=frozenset(stops),
        stop_strings=rng.choice([(), ("zz", "q")]),
        seed=number,
        timeout=rng.choice([None, 60.0, 0.0]),
        session=rng.choice([None, number]),
    )


@pytest.mark.parametrize(
    "make_engine",
    [LocalEngine, partial(LocalEngine, cache_tokens=512), TransformersEngine],
    ids=["local", "local, little memory", "transformers"],
)
def test_neighbours_sampling_parameters_change_no_draw(make_engine):
    model, tokenizer = make_model(), make_format("plain").tokenizer
    watched = [GenerationRequest([7, i, 3], 15, params, seed=i) for i, params in enumerate(PARAMS)]
    alone = [run_all(make_engine(model, tokenizer), [request])[0] for request in watched]
    exact = make_engine is not TransformersEngine  # which pads, so that rounding differs
    for trial in range(6):
        rng = random.Random(trial)
        others = [make_neighbour(rng, 100 * trial + i) for i in range(rng.randrange(1, 30))]
        crowd = [*watched, *others]
        rng.shuffle(crowd)
        drawn = run_all(make_engine(model, tokenizer), crowd)
        results = dict(zip(map(id, crowd), drawn, strict=True))
        for request, expected in zip(watched, alone, strict=True):
            result = results[id(request)]
            assert list(result.ids) == list(expected.ids)
            if exact:
                assert list(result.log_probs) == list(expected.log_probs)


@pytest.mark.parametrize("vocab_size", [97, 3000, 20000])  # few, more than are sorted, in blocks
def test_a_row_is_drawn_alike_in_any_batch(vocab_size):
    rng = random.Random(vocab_size)
    params = [*PARAMS, SamplingParams(top_k=2500), SamplingParams(top_k=1500, top_p=0.7)]
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
