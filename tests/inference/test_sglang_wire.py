"""SGLang's wire format: answers that were recorded from a real server are read."""

import asyncio

import pytest

from inference import sglang_recorded as recorded
from inference.sglang_server import SGLangServer
from turnwise.inference import FinishReason, GenerationRequest, SamplingParams
from turnwise.inference.sglang import SGLangServerEngine

VOCABULARY = 49152


class Replay:
    """Answers every `/generate` with what was recorded, whatever it is asked."""

    is_dead = False

    def __init__(self, *answers):
        self.answers = list(answers)

    def generate(self, body):
        return self.answers.pop(0)

    def server_info(self):
        return {
            "model_path": "MODEL_A",
            "max_req_input_len": 2042,
            "enable_deterministic_inference": False,
            "sampling_backend": "pytorch",
        }


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


@pytest.mark.parametrize(
    ("answer", "stops", "asked", "ids"),
    [
        ("STOP_TOKEN", {"stop_ids": {48300}}, ("stop_token_ids", [48300]), [31154, 29258, 48300]),
        # Its token is whole, though SGLang cuts its text.
        ("STOP_STRING", {"stop_strings": ("e", "a")}, ("stop", ["e", "a"]), [28947]),
    ],
)
def test_what_a_recorded_turn_stopped_at_is_part_of_it(answer, stops, asked, ids):
    request = GenerationRequest(recorded.PROMPT, 64, **stops)
    result, body = replay(getattr(recorded, answer), request)
    assert (list(result.ids), result.finish_reason) == (ids, FinishReason.STOP)
    assert asked in body["sampling_params"].items()


def test_recorded_prompt_log_probs_are_scores():
    with (
        SGLangServer(Replay(recorded.PROMPT_LOG_PROBS)) as server,
        SGLangServerEngine(server.url, tokenizer=OfThatSize()) as engine,
    ):
        scores = asyncio.run(engine.score(recorded.PROMPT, 1))
    assert len(scores) == 8
    assert (scores[0], scores[-1]) == (-10.499361991882324, -10.262015342712402)


def test_a_request_says_what_it_needs_and_no_more():
    for params, num_top in (
        (SamplingParams(temperature=0.5), 0),
        (SamplingParams(temperature=0.0, top_p=0.5), 0),
        (SamplingParams(top_p=0.5), 128),
        (SamplingParams(top_k=7, top_p=0.5), 7),
        (SamplingParams(top_k=10**6), VOCABULARY),
    ):
        _, body = replay(recorded.IDS, GenerationRequest(recorded.PROMPT, 2, params, seed=-1))
        assert body["top_logprobs_num"] == num_top
        assert body["sampling_params"]["ignore_eos"] is True
        assert body["sampling_params"]["top_k"] == (params.top_k or -1)
        assert body["sampling_params"]["sampling_seed"] == 2**63 - 1
