"""vLLM as a guest: what is passed on to it, what it leaves alone, and how it goes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import turnwise
from beside_vllm.cases import TOLERANCE, make_requests, sample_all
from turnwise import ConfigError
from turnwise.inference.vllm import VLLMInferenceEngine

ROOT = Path(turnwise.__file__).parent.parent.parent


def run_python(*arguments):
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def test_a_script_of_its_own(tmp_path):
    result = run_python(str(ROOT / "tests" / "beside_vllm" / "guest.py"), str(tmp_path))
    assert result.stdout.strip().endswith("all is well"), result.stderr[-3000:]


def test_without_vllm_the_command_that_installs_it_is_named():
    result = run_python(
        "-c",
        "import sys\n"
        "sys.modules['vllm'] = None\n"
        "from turnwise import MissingExtraError\n"
        "from turnwise.inference.vllm import VLLMInferenceEngine\n"
        "try:\n"
        "    VLLMInferenceEngine('somewhere')\n"
        "except MissingExtraError as error:\n"
        "    print(error)",
    )
    assert "pip install 'turnwise[vllm]'" in result.stdout, result.stderr


def test_two_workers_share_the_model(first, second, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # for the workers, which share few cores
    requests = make_requests(6, 8)
    with VLLMInferenceEngine(
        str(first.folder), tensor_parallel_size=2, kv_cache_memory_bytes=2**27
    ) as engine:
        for request, result in zip(requests, sample_all(engine, requests), strict=True):
            assert first.gap(request, result) < TOLERANCE
        assert engine.update_weights(second.model.state_dict()) == 1
        for request, result in zip(requests, sample_all(engine, requests), strict=True):
            assert result.weight_version == 1
            assert second.gap(request, result) < TOLERANCE


def test_options_reach_vllm(first):
    with VLLMInferenceEngine(
        str(first.folder), max_model_len=300, max_num_seqs=17, seed=5, kv_cache_memory_bytes=2**27
    ) as engine:
        assert engine.context_length == 300
        given = {"max_num_seqs": 17, "seed": 5, "dtype": "float32"}
        assert given.items() <= engine.settings.items()
        assert engine.settings["logprobs_mode"] == "processed_logprobs"


def test_options_that_cannot_be_are_named(first):
    with pytest.raises(ConfigError, match=r"no option 'max_num_seq'\. Did you mean 'max_num_seqs'"):
        VLLMInferenceEngine(str(first.folder), max_num_seq=3)
    with pytest.raises(ConfigError, match="logprobs_mode got 'raw_logprobs'"):
        VLLMInferenceEngine(str(first.folder), logprobs_mode="raw_logprobs")
