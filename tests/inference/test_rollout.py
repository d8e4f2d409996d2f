"""`VLLMRolloutSPMD` on engines that are here: batches of tokens in, batches of tokens out."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from turnwise import (
    ConfigError,
    MissingExtraError,
    PromptDataset,
    RewardBatch,
    VLLMRolloutSPMD,
    collate_fn,
    create_inference_engine,
)
from turnwise.reward.batches import Columns

PROMPTS = ["One plus one is", "Hi", "Tell me about tea."]


@pytest.fixture(scope="module")
def engine():
    with create_inference_engine("tiny") as engine:
        yield engine


def batch_of(engine):
    items = PromptDataset([{"prompt": text, "level": n} for n, text in enumerate(PROMPTS)])
    items.tokenizer = engine.tokenizer
    return collate_fn(list(items), pad_token_id=engine.tokenizer.pad_token_id)


def test_a_batch_of_tokens_gets_its_responses(engine):
    rollout = VLLMRolloutSPMD(engine, max_tokens=5, seed=3)
    batch = batch_of(engine)
    found = rollout.generate_sequences(batch)
    expected = engine.generate(PROMPTS, max_tokens=5, seed=3)
    assert found["level"] == [0, 1, 2]
    assert torch.equal(found["prompts"], batch["input_ids"])
    assert torch.equal(found["input_ids"], torch.cat([found["prompts"], found["responses"]], 1))
    for row, (ids, log_probs) in enumerate(zip(expected.token_ids, expected.logprobs, strict=True)):
        mask = found["response_mask"][row].bool()
        assert found["responses"][row][mask].tolist() == ids
        assert found["rollout_log_probs"][row][mask].tolist() == pytest.approx(log_probs)
        seen = found["attention_mask"][row].bool()
        assert found["input_ids"][row][seen].tolist() == [
            *engine.tokenizer.encode(PROMPTS[row]),
            *ids,
        ]
        assert found["position_ids"][row][seen].tolist() == list(range(int(seen.sum())))
    # The columns are those of the scores of VERL: as wide as the response.
    assert found["rollout_log_probs"].shape == found["responses"].shape == (3, 5)


def test_texts_rows_of_ids_and_batches_say_the_same(engine):
    rollout = VLLMRolloutSPMD(engine, max_tokens=4)
    expected = engine.generate(PROMPTS, max_tokens=4).token_ids
    ids = [engine.tokenizer.encode(text) for text in PROMPTS]
    data = RewardBatch(Columns(batch_of(engine)), {"uid": np.array(["a", "b", "c"])})
    for inputs in (PROMPTS, ids, [torch.tensor(row) for row in ids], batch_of(engine), data):
        assert rollout.inference(inputs).token_ids == expected
        assert rollout.batch_generation(inputs).token_ids == expected
    assert rollout.generate_sequences(PROMPTS).token_ids == expected
    assert rollout.inference("Hi", max_tokens=2).tokens.shape == (1, 2)
    found = rollout.generate_sequences(data)
    assert isinstance(found, RewardBatch)
    assert found.non_tensor_batch["uid"].tolist() == ["a", "b", "c"]
    assert [len(row) for row in found.batch["responses"]] == [4, 4, 4]


def test_a_batch_that_is_not_to_be_sampled_is_greedy(engine):
    data = RewardBatch(Columns(batch_of(engine)), meta_info={"do_sample": False})
    rollout = VLLMRolloutSPMD(engine, max_tokens=4, seed=9)
    greedy = engine.generate(PROMPTS, max_tokens=4, temperature=0.0)
    assert rollout.generate_sequences(data).batch["responses"].tolist() == greedy.tokens.tolist()


def test_an_engine_that_was_given_stays_open_and_one_that_was_made_does_not(engine):
    with VLLMRolloutSPMD(engine):
        pass
    assert len(engine.generate("Hi", max_tokens=1)) == 1
    with VLLMRolloutSPMD("tiny", {"dtype": "float32"}, backend="local", max_tokens=1) as rollout:
        assert len(rollout.inference("Hi")) == 1
    with pytest.raises(Exception, match="closed"):
        rollout.inference("Hi")


def test_what_cannot_be_is_told(engine):
    with pytest.raises(ConfigError, match="needs input_ids, got prompt"):
        VLLMRolloutSPMD(engine).generate_sequences({"prompt": ["Hi"]})
    if find_spec("vllm") is None:
        with pytest.raises(MissingExtraError, match=r"turnwise\[vllm\]"):
            VLLMRolloutSPMD("tiny")
