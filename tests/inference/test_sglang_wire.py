"""SGLang's wire format: our server speaks it as the recorded one did, our client reads it."""

import asyncio
import copy
import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import LlamaConfig

from inference import sglang_recorded as recorded
from inference.sglang_runtime import TinySGLang
from inference.sglang_server import SGLangServer
from turnwise.errors import EngineError
from turnwise.inference import FinishReason, GenerationRequest, SamplingParams
from turnwise.inference.sglang import SGLangServerEngine, wire

RECORDING = Path(__file__).parents[3] / "shared" / "fixtures" / "sglang-0.5.17-wire.json"
FACTS = wire.ServerFacts(2041, False, "pytorch", ["MODEL_A"])
VOCABULARY = 49152


class Replay:
    """Answers every `/generate` with what was recorded, whatever it is asked."""

    is_dead = False

    def __init__(self, *answers):
        self.answers = list(answers)

    def generate(self, body):
        return self.answers.pop(0)

    def model_info(self):
        return {"model_path": "MODEL_A", "tokenizer_path": "MODEL_A", "weight_version": "default"}

    def server_info(self):
        return {
            "max_req_input_len": 2042,
            "enable_deterministic_inference": False,
            "sampling_backend": "pytorch",
        }

    def update_weights_from_disk(self, *_, **__):
        return False, recorded.UPDATE_REFUSED["message"]


class OfThatSize:
    """Stands for the tokenizer of the model that was recorded."""

    def __len__(self):
        return VOCABULARY

    def decode(self, ids):
        return "".join({28947: "ructure"}.get(i, "x") for i in ids)


def replay(answer, request, **options):
    with (
        SGLangServer(Replay(answer)) as server,
        SGLangServerEngine(server.url, tokenizer=OfThatSize(), **options) as engine,
    ):
        return asyncio.run(engine.sample(request)), server.asked("/generate")[0]


def test_recorded_tokens_and_log_probs_are_read():
    result, _ = replay(recorded.IDS, GenerationRequest(recorded.PROMPT, 2))
    assert list(result.ids) == [43531, 41751]
    assert list(result.log_probs) == [-10.905238151550293, -10.906769752502441]
    assert result.finish_reason is FinishReason.LENGTH
    assert result.weight_version == 0


def test_a_recorded_stop_token_is_part_of_the_turn():
    request = GenerationRequest(recorded.PROMPT, 64, stop_ids=frozenset({48300}))
    result, body = replay(recorded.STOP_TOKEN, request)
    assert list(result.ids) == [31154, 29258, 48300]
    assert result.finish_reason is FinishReason.STOP
    assert body["sampling_params"]["stop_token_ids"] == [48300]


def test_the_tokens_of_a_recorded_stop_string_are_whole_though_its_text_is_cut():
    request = GenerationRequest(recorded.PROMPT, 64, stop_strings=("e", "a"))
    result, body = replay(recorded.STOP_STRING, request)
    assert list(result.ids) == [28947]
    assert result.finish_reason is FinishReason.STOP
    assert body["sampling_params"]["stop"] == ["e", "a"]


def test_recorded_prompt_log_probs_are_scores():
    with (
        SGLangServer(Replay(recorded.PROMPT_LOG_PROBS)) as server,
        SGLangServerEngine(server.url, tokenizer=OfThatSize()) as engine,
    ):
        scores = asyncio.run(engine.score(recorded.PROMPT, 1))
    assert len(scores) == 8
    assert (scores[0], scores[-1]) == (-10.499361991882324, -10.262015342712402)


def test_a_recorded_refusal_of_weights_is_passed_on():
    with (
        SGLangServer(Replay()) as server,
        SGLangServerEngine(server.url, tokenizer=OfThatSize()) as engine,
    ):
        with pytest.raises(EngineError, match="Repo id must be in the form"):
            engine.update_weights("MISSING")
        assert engine.weight_version == 0


def read(answer, request=None):
    return wire.read_response(
        answer, request or GenerationRequest(recorded.PROMPT, 64), FACTS, VOCABULARY
    )


def test_tokens_that_are_not_those_of_the_log_probs_are_an_error():
    answer = copy.deepcopy(recorded.IDS)
    answer["output_ids"][1] = 7
    with pytest.raises(EngineError, match="log-probs for the tokens"):
        read(answer)


def test_a_turn_that_sglang_broke_off_itself_is_an_error():
    answer = copy.deepcopy(recorded.STOP_STRING)
    answer["meta_info"]["finish_reason"]["matched"] = "NaN happened"
    with pytest.raises(EngineError, match="NaN happened"):
        read(answer)


def test_an_answer_of_something_else_is_named():
    with pytest.raises(EngineError, match="no answer of SGLang"):
        read({"choices": []})


def test_a_request_says_what_it_needs_and_no_more():
    plain = GenerationRequest([5, 6], 9, seed=-1)
    body = wire.generation_body(plain, [5, 6], 9, "r", 0)
    assert body["sampling_params"]["ignore_eos"] is True
    assert body["sampling_params"]["top_k"] == -1
    assert body["sampling_params"]["sampling_seed"] == 2**63 - 1
    assert "top_logprobs_num" not in body
    for params, num_top in (
        (SamplingParams(), 0),
        (SamplingParams(temperature=0.5), 0),
        (SamplingParams(temperature=0.0, top_p=0.5), 0),
        (SamplingParams(top_p=0.5), 128),
        (SamplingParams(top_k=7, top_p=0.5), 7),
        (SamplingParams(top_k=10**6), VOCABULARY),
    ):
        request = GenerationRequest([5], 9, params)
        assert wire.num_top_needed(request, 128, VOCABULARY) == num_top


class Letters:
    """Every token is one letter, so that a stop string comes soon, whatever is sampled."""

    eos_token_id = -1

    def encode(self, text, add_special_tokens=True):
        return [5] * len(text)

    def decode(self, ids, skip_special_tokens=False):
        return "".join("ae"[i % 2] for i in ids)


@pytest.fixture(scope="module")
def recorded_server(tmp_path_factory):
    """A server of ours with the vocabulary and the context of the recorded one."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
    )
    other = tmp_path_factory.mktemp("model-b")
    AutoModelForCausalLM.from_config(config).save_pretrained(other)
    runtime = TinySGLang(AutoModelForCausalLM.from_config(config), Letters())
    with SGLangServer(runtime) as server:
        yield server, str(other)


def call(url, method, path, body):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, method=method)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def spelt_out(body, other):
    """What the recording says in words, and the place of the second model."""
    if body is None:
        return None
    body = json.loads(json.dumps(body).replace("MODEL_B", other))
    if isinstance(body.get("input_ids"), str):
        body["input_ids"] = [5] * 3000
    params = body.get("sampling_params")
    if isinstance(params, dict) and "stop_token_ids" in params:
        params["stop_token_ids"] = list(range(0, 49000, 3))
    return body


def assert_same_shape(got, expected, where="answer"):
    """The same keys and types; what was sampled, and how long it is, may differ."""
    if where.endswith("cached_tokens_details"):
        return  # null if nothing was cached
    assert type(got) is type(expected), where
    if isinstance(expected, dict):
        assert got.keys() == expected.keys(), where
        for key in expected:
            assert_same_shape(got[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert bool(got) == bool(expected), where
        as_long = len(got) == len(expected)
        for mine, theirs in (
            zip(got, expected, strict=True) if as_long else [(got[-1], expected[-1])]
        ):
            assert_same_shape(mine, theirs, where + "[]")


def is_message(body):
    """Not about what chance sampled, so it must be the same word for word."""
    return isinstance(body, dict) and not body.keys() & {"meta_info", "model_path"}


@pytest.mark.skipif(not RECORDING.exists(), reason="the recording is kept outside the repository")
def test_our_server_answers_every_recorded_request_in_the_recorded_form(recorded_server):
    server, other = recorded_server
    exchanges = json.loads(RECORDING.read_text())["exchanges"]
    assert len(exchanges) > 20
    for exchange in exchanges:
        name, asked = exchange["name"], exchange["request"]
        status, content_type, text = call(
            server.url, asked["method"], asked["path"], spelt_out(asked["json"], other)
        )
        assert (status, content_type) == (exchange["status"], exchange["content_type"]), name
        expected = exchange["body"]
        if content_type == "application/json":
            assert_same_shape(json.loads(text), expected, name)
            if is_message(expected):
                assert json.loads(text) == expected, name
        elif "event-stream" in (content_type or ""):
            pieces = zip(text.split("\n\n"), expected.split("\n\n"), strict=True)
            for piece, wanted in pieces:
                if wanted.startswith("data: {"):
                    assert_same_shape(json.loads(piece[6:]), json.loads(wanted[6:]), name)
                else:
                    assert piece == wanted
        else:
            assert text == expected, name


@pytest.mark.skipif(not RECORDING.exists(), reason="the recording is kept outside the repository")
def test_the_copy_in_the_tests_is_true_to_the_recording():
    bodies = {e["name"]: e["body"] for e in json.loads(RECORDING.read_text())["exchanges"]}
    assert bodies["error_too_long"] == recorded.TOO_LONG
    assert bodies["update_disk_missing"] == recorded.UPDATE_REFUSED
    for ours, name in (
        (recorded.IDS, "generate_ids"),
        (recorded.STOP_TOKEN, "generate_stop_token"),
        (recorded.STOP_STRING, "generate_stop_string"),
        (recorded.PROMPT_LOG_PROBS, "generate_greedy_prompt_logprobs"),
    ):
        theirs = bodies[name]
        assert_same_shape(ours, theirs, name)
        count = len(ours["output_ids"])
        assert ours["output_ids"] == theirs["output_ids"][:count]
        for key in ("output_token_logprobs", "input_token_logprobs"):
            mine = ours["meta_info"][key]
            assert mine == theirs["meta_info"][key][: len(mine)]
