"""Engines for people: strings in, strings and all that is known of them out."""

import copy
import json
import threading

import numpy as np
import pytest
import torch

from turnwise import ConfigError, InferenceEngine, create_inference_engine, load_model
from turnwise.errors import DeadlineExceeded
from turnwise.inference import FinishReason, GenerationOutput, sampling_log_probs
from turnwise.inference.sampling import SamplingParams

PROMPTS = ["Hello", "A longer prompt, 12", "ß"]


@pytest.fixture(scope="module")
def loaded():
    model = load_model("tiny", device="cpu")
    # Larger than usual, so that choices differ; not the norms, or every layer multiplies rounding:
    # a plain forward in float32 is then 3e-4 from the same in float64.
    for name, parameter in model.model.named_parameters():
        if "norm" not in name:
            parameter.data.mul_(3.0)
    return model


@pytest.fixture(scope="module", params=["local", "transformers"])
def engine(request, loaded):
    with create_inference_engine(loaded.model, request.param, tokenizer=loaded.tokenizer) as made:
        yield made


def plain_log_probs(loaded, prompt, ids, params):
    before = loaded.tokenizer.encode(prompt)
    with torch.no_grad():
        logits = loaded.model(torch.tensor([[*before, *ids]])).logits[0, len(before) - 1 : -1]
    log_probs = sampling_log_probs(logits, [params] * len(ids))
    return log_probs.gather(1, torch.tensor(ids)[:, None]).squeeze(1)


def test_the_output_is_the_answers_and_what_is_known_of_them(engine, loaded):
    output = engine.generate(PROMPTS, max_tokens=20, temperature=0.9, top_p=0.8, seed=3)
    assert isinstance(output, GenerationOutput)
    assert len(output) == len(output.sequences) == 3
    assert output[0] == output.sequences[0]
    assert list(output) == output.sequences
    assert output[1:] == output.sequences[1:]
    for i, prompt in enumerate(PROMPTS):
        ids = output.token_ids[i]
        assert output[i] == loaded.tokenizer.decode(ids, skip_special_tokens=True)
        assert not output[i].startswith(prompt)
        expected = plain_log_probs(loaded, prompt, ids, SamplingParams(0.9, top_p=0.8))
        torch.testing.assert_close(torch.tensor(output.logprobs[i]), expected, atol=1e-4, rtol=0)


def test_tokens_are_one_array_padded_on_the_right(engine, loaded):
    end = loaded.tokenizer.eos_token_id
    output = engine.generate(PROMPTS * 20, max_tokens=90, temperature=1.5)
    lengths = {len(ids) for ids in output.token_ids}
    assert len(lengths) > 1, "some must have ended early for this to say anything"
    assert output.tokens.dtype == np.int64
    assert output.tokens.shape == (60, max(lengths))
    for row, ids, reason in zip(
        output.tokens, output.token_ids, output.finish_reasons, strict=True
    ):
        assert row[: len(ids)].tolist() == ids
        assert set(row[len(ids) :].tolist()) <= {loaded.tokenizer.pad_token_id}
        assert reason is (FinishReason.STOP if ids[-1] == end else FinishReason.LENGTH)
        assert end not in ids[:-1]


@pytest.mark.parametrize("backend", ["local", "transformers", "scripted"])
def test_every_configured_end_token_ends_an_answer(loaded, tmp_path, backend):
    tokenizer = copy.copy(loaded.tokenizer)
    model = "tiny" if backend == "scripted" else loaded.model
    with create_inference_engine(model, backend, tokenizer=tokenizer) as engine:
        (ids,) = engine.generate("Hello", max_tokens=8, seed=1).token_ids
    place = next(i for i in range(2, 8) if ids[i] not in ids[:i])
    ends = {"eos_token_id": [tokenizer.eos_token_id, ids[place]]}
    (tmp_path / "generation_config.json").write_text(json.dumps(ends))
    tokenizer.name_or_path = str(tmp_path)
    with create_inference_engine(model, backend, tokenizer=tokenizer) as engine:
        output = engine.generate("Hello", max_tokens=8, seed=1)
    assert output.token_ids == [ids[: place + 1]]
    assert output.finish_reasons == [FinishReason.STOP]
    assert output[0] == tokenizer.decode(ids[:place], skip_special_tokens=True)


def test_an_engine_that_hangs_does_not_hold_up_new_weights_for_ever(engine, monkeypatch):
    monkeypatch.setattr(engine, "update_timeout", 0.05)
    release = threading.Event()
    engine._in_thread(release.wait, wait_for_idle=False)
    with pytest.raises(DeadlineExceeded, match=r"taking new weights took longer than 0\.05 s"):
        engine.update_weights(None)
    release.set()
    monkeypatch.undo()
    version = engine.weight_version
    assert engine.update_weights(None) > version


def test_an_answer_that_ends_itself_has_its_end_in_the_tokens_and_not_in_the_text():
    engine = create_inference_engine("tiny", "scripted", policy=lambda prompt: prompt + " yes")
    output = engine.generate(["a", "bc"])
    assert output.sequences == ["a yes", "bc yes"]
    assert output.finish_reasons == [FinishReason.STOP, FinishReason.STOP]
    assert output.tokens[:, -1].tolist() == [
        engine.tokenizer.pad_token_id,
        engine.tokenizer.eos_token_id,
    ]


def test_a_stop_string_as_text_or_several(engine):
    free = engine.generate("Hello", max_tokens=40)
    letters = [c for c in free[0][5:] if c.isascii() and c.isprintable()]
    assert letters, "the model must say something legible"
    for stop in (letters[0], ["never said", letters[0]]):
        output = engine.generate("Hello", max_tokens=40, stop=stop)
        assert output.finish_reasons == [FinishReason.STOP]
        assert letters[0] in output[0]
        assert letters[0] not in engine.tokenizer.decode(output.token_ids[0][:-1])
        assert free[0].startswith(output[0])


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([""], {}, "has no tokens"),
        (["a"], {"max_tokens": 0}, "max_tokens got 0"),
        (["a"], {"temperature": -1.0}, "temperature got -1.0"),
        (["a"], {"top_p": 0.0}, "top_p got 0.0"),
        (["a"], {"top_k": -2}, "top_k got -2"),
        (["a"], {"min_p": 2.0}, "min_p got 2.0"),
    ],
)
def test_arguments_that_make_no_sense_are_named(engine, prompts, options, message):
    with pytest.raises(ConfigError, match=message):
        engine.generate(prompts, **options)


def test_log_probs_of_given_answers_are_those_of_a_plain_forward(engine, loaded):
    answers = ["yes", "no, never!", ""]
    with pytest.raises(ConfigError, match="3 prompts and 1 responses"):
        engine.compute_log_probs(PROMPTS, ["yes"])
    found = engine.compute_log_probs(PROMPTS, answers)
    expected = [
        plain_log_probs(loaded, prompt, loaded.tokenizer.encode(answer), SamplingParams()).sum()
        if answer
        else torch.tensor(0.0)
        for prompt, answer in zip(PROMPTS, answers, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-4, rtol=1e-5)


def test_the_plain_engine_loads_its_model_itself_and_samples_as_documented(loaded):
    with InferenceEngine("tiny", device="cpu") as engine:
        assert engine.device == engine.model.device == torch.device("cpu")
        assert engine.tokenizer.encode("a") == loaded.tokenizer.encode("a")
        output = engine.generate(PROMPTS, 12)
        said = engine.generate(PROMPTS, max_new_tokens=12, temperature=0.7, top_p=0.9)
        assert output.token_ids == said.token_ids
        assert output.logprobs == said.logprobs
