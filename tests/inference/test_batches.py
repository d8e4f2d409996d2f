"""Long lists: a window that is always full, and answers in order."""

import asyncio

import pytest

from turnwise import BatchInferenceManager, ConfigError, InferenceEngine
from turnwise.inference import BaseInferenceEngine, FinishReason, GenerationResult
from turnwise.models import load_tokenizer

PROMPTS = [f"prompt {i}" for i in range(25)]


class Steps(BaseInferenceEngine):
    """Says the prompt backwards after as many turns of the event loop as `delays` tells."""

    context_length = 1000

    def __init__(self, delays=lambda text: 1):
        super().__init__(load_tokenizer("tiny"))
        self.delays = delays
        self.at_work: set[str] = set()
        self.seen: list[frozenset[str]] = []

    async def sample(self, request):
        text = self.tokenizer.decode(request.prompt_ids)
        self.at_work.add(text)
        self.seen.append(frozenset(self.at_work))
        for _ in range(self.delays(text)):
            await asyncio.sleep(0)
        self.at_work.remove(text)
        ids = self.tokenizer.encode(text[::-1])
        return GenerationResult(ids, [0.0] * len(ids), FinishReason.STOP, 0)

    def close(self):
        raise AssertionError("the engine is not the manager's to close")


def test_answers_come_in_the_order_of_the_prompts():
    engine = Steps(delays=lambda text: 50 - 2 * int(text.split()[1]))  # the last ends first
    output = BatchInferenceManager(engine, batch_size=4).generate_batch(PROMPTS, max_tokens=9)
    assert output.sequences == [prompt[::-1] for prompt in PROMPTS]


def test_the_window_is_never_overfull_and_nobody_waits_for_the_slowest():
    engine = Steps(delays=lambda text: 60 if text == "prompt 0" else 2)
    BatchInferenceManager(engine, batch_size=4).generate_batch(PROMPTS)
    assert max(map(len, engine.seen)) == 4
    assert all("prompt 0" in seen for seen in engine.seen)  # all others came and went meanwhile


def test_what_is_not_said_is_as_the_engine_has_it():
    with InferenceEngine("tiny", device="cpu") as engine:
        expected = engine.generate(PROMPTS[:5], 8)
        output = BatchInferenceManager(engine, 2).generate_batch(PROMPTS[:5], 8)
        assert output.token_ids == expected.token_ids
        for ours, theirs in zip(output.logprobs, expected.logprobs, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)
        with pytest.raises(TypeError, match="temprature"):
            BatchInferenceManager(engine, 2).generate_batch(PROMPTS[:5], temprature=1)


def test_mistakes_that_concern_all_come_at_once():
    engine = Steps()
    with pytest.raises(ConfigError, match="temperature"):
        BatchInferenceManager(engine).generate_batch(PROMPTS, temperature=-1)
    with pytest.raises(ConfigError, match="batch_size got 0"):
        BatchInferenceManager(engine, batch_size=0)
    assert engine.seen == []
