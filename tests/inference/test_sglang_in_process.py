"""The engine in this process, on a stand-in for the `sglang` package.

SGLang's kernels need a GPU, so what is tested here is our side only: `bench/gpu/sglang_check.py`
is for a machine that has both. The stand-in has the signatures of 0.5.23's `Engine`, its tie to
one event loop, and the same tiny model as our server.
"""

import asyncio
import pickle
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType

import pytest

from inference.sglang_cases import GREEDY, TOKENIZER, gap, make_model, sample
from inference.sglang_runtime import TinySGLang
from inference.tiny_models import plain_log_probs
from turnwise import ConfigError, MissingExtraError
from turnwise.errors import EngineError
from turnwise.inference import GenerationRequest, SamplingParams
from turnwise.inference.sglang import SGLangInferenceEngine


@dataclass
class ServerArgs:
    model_path: str
    dtype: str = "auto"
    tp_size: int = 1
    context_length: int | None = None
    trust_remote_code: bool = False
    mem_fraction_static: float | None = None


@dataclass(kw_only=True)
class UpdateWeightFromDiskReqInput:
    model_path: str
    load_format: str | None = None
    abort_all_requests: bool = False
    weight_version: str | None = None
    flush_cache: bool = True


@dataclass(kw_only=True)
class UpdateWeightsFromTensorReqInput:
    serialized_named_tensors: list[bytes]
    load_format: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None


class TokenizerManager:
    def __init__(self, runtime):
        self.runtime, self.event_loop, self.handling = runtime, None, None

    def auto_create_handle_loop(self):
        """The first loop that asks is the one that its sockets belong to."""
        self.event_loop = self.event_loop or asyncio.get_running_loop()
        assert self.event_loop is asyncio.get_running_loop()
        self.handling = self.handling or self.event_loop.create_task(asyncio.Event().wait())

    async def get_internal_state(self):
        self.auto_create_handle_loop()

    def abort_request(self, rid="", abort_all=False):
        self.runtime.abort(rid)

    async def update_weights_from_disk(self, obj, request=None):
        self.auto_create_handle_loop()
        assert isinstance(obj, UpdateWeightFromDiskReqInput)
        success, message = await asyncio.to_thread(
            self.runtime.update_weights_from_disk, obj.model_path, flush_cache=obj.flush_cache
        )
        return success, message, 0

    async def update_weights_from_tensor(self, obj, request=None):
        self.auto_create_handle_loop()
        assert isinstance(obj, UpdateWeightsFromTensorReqInput)
        return await asyncio.to_thread(
            self.runtime.update_weights_from_tensor,
            pickle.loads(obj.serialized_named_tensors[0]),
            flush_cache=obj.flush_cache,
        )


class Engine:
    made = None

    def __init__(self, **kwargs):
        self.options, self.is_shut_down = kwargs, False
        runtime = TinySGLang(make_model(), TOKENIZER, kwargs["model_path"])
        runtime.is_deterministic = kwargs.get("enable_deterministic_inference", False)
        self.tokenizer_manager = TokenizerManager(runtime)
        self.loop = self.own_loop = asyncio.new_event_loop()
        Engine.made = self

    def get_server_info(self):
        self.loop.run_until_complete(self.tokenizer_manager.get_internal_state())
        return self.tokenizer_manager.runtime.server_info()

    async def async_generate(
        self,
        prompt=None,
        sampling_params=None,
        input_ids=None,
        return_logprob=False,
        logprob_start_len=None,
        top_logprobs_num=None,
        token_ids_logprob=None,
        stream=False,
        rid=None,
    ):
        self.tokenizer_manager.auto_create_handle_loop()
        assert prompt is None
        body = {
            "input_ids": input_ids,
            "sampling_params": sampling_params,
            "return_logprob": return_logprob,
            "logprob_start_len": -1 if logprob_start_len is None else logprob_start_len,
            "top_logprobs_num": top_logprobs_num or 0,
            "rid": rid,
        }
        return await asyncio.to_thread(self.tokenizer_manager.runtime.generate, body)

    def shutdown(self):
        self.own_loop.close()
        self.is_shut_down = True


@pytest.fixture
def folder(tmp_path):
    make_model().config.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    return str(tmp_path)


def stand_in_for_sglang(monkeypatch):
    """The package needs a GPU; the model in its stand-in is real."""
    for name in ("", ".srt", ".srt.managers", ".srt.managers.io_struct", ".srt.server_args"):
        monkeypatch.setitem(sys.modules, f"sglang{name}", ModuleType(f"sglang{name}"))
    sys.modules["sglang.srt.server_args"].ServerArgs = ServerArgs
    sys.modules["sglang"].Engine = Engine
    for kind in (UpdateWeightFromDiskReqInput, UpdateWeightsFromTensorReqInput):
        setattr(sys.modules["sglang.srt.managers.io_struct"], kind.__name__, kind)


@pytest.fixture
def engine(monkeypatch, folder):
    stand_in_for_sglang(monkeypatch)
    with SGLangInferenceEngine(folder, tensor_parallel_size=2, mem_fraction_static=0.4) as engine:
        yield engine


def test_tokens_log_probs_and_scores_are_those_of_the_model(engine):
    model = make_model()
    requests = [
        GenerationRequest([5, 6, 7], 20, GREEDY),
        GenerationRequest([5, 6], 20, SamplingParams(temperature=0.7, top_k=9, top_p=1.0)),
    ]
    for request, result in zip(requests, sample(engine, *requests), strict=True):
        assert len(result.ids) == 20
        assert gap(model, request, result) < 1e-4
    expected = plain_log_probs(model, GenerationRequest([5, 6], 2), [8, 9]).tolist()
    assert asyncio.run(engine.score([5, 6, 8, 9], 2)) == pytest.approx(expected, abs=1e-4)
    assert len(engine.generate("hello", max_tokens=3).token_ids[0]) <= 3


def test_new_weights_are_used_from_then_on(engine):
    other = make_model(seed=1)
    request = GenerationRequest([5, 6, 7], 9, GREEDY)
    sample(engine, request)
    assert engine.update_weights(other.state_dict()) == 1
    result = sample(engine, request)
    assert result.weight_version == 1
    assert gap(other, request, result) < 1e-4
    with pytest.raises(EngineError, match="did not take"):
        engine.update_weights("nowhere/at-all")
    assert engine.weight_version == 1
    assert sample(engine, request).ids == result.ids  # it was refused: these are in place


def test_tensors_are_read_where_they_are(engine, monkeypatch):
    monkeypatch.setattr(engine, "_asked_transfer", "ipc")  # as for tensors on a GPU
    request = GenerationRequest([5, 6, 7], 9, GREEDY)
    other = make_model(seed=1)
    assert engine.update_weights(other.state_dict()) == 1
    assert gap(other, request, sample(engine, request)) < 1e-4


def test_an_option_that_sglang_does_not_have_is_named(engine, folder):
    with pytest.raises(ConfigError, match=r"SGLang has no option 'mem_fraction'.*mem_fraction_s"):
        SGLangInferenceEngine(folder, mem_fraction=0.4)


def test_closing_shuts_sglang_down(engine):
    engine.close()
    engine.close()
    assert Engine.made.is_shut_down


def test_log_probs_without_the_temperature_are_refused_beforehand(monkeypatch, folder):
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
    with pytest.raises(ConfigError, match="SGLANG_RETURN_ORIGINAL_LOGPROB is set"):
        SGLangInferenceEngine(folder)


@pytest.mark.skipif(find_spec("sglang") is not None, reason="sglang is installed")
def test_without_sglang_the_command_that_installs_it_is_said(folder):
    with pytest.raises(MissingExtraError, match=r"pip install 'turnwise\[sglang\]'"):
        SGLangInferenceEngine(folder)
