"""Real vLLM, CPU build; `make test-vllm` runs this folder, in an environment that has it."""

import pytest

from beside_vllm.cases import save_model, tokenizer
from beside_vllm.servers import start_server
from turnwise.inference.vllm import VLLMInferenceEngine, VLLMServerEngine
from turnwise.inference.vllm.receiver import RECEIVER


@pytest.fixture(scope="session")
def first(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "first", seed=0)


@pytest.fixture(scope="session")
def second(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "second", seed=1)


@pytest.fixture(scope="module")
def engine(first):
    """One for a whole file: there can be only one in a process at a time."""
    with VLLMInferenceEngine(str(first.folder), block_size=32, kv_cache_memory_bytes=2**28) as made:
        yield made


@pytest.fixture(scope="session")
def server(servers):
    return servers[0]


@pytest.fixture(scope="module")
def client(server):
    with VLLMServerEngine(server.url, tokenizer=tokenizer()) as made:
        yield made


@pytest.fixture(scope="module", params=["engine", "client"])
def either(request):
    """vLLM in this process, and behind a URL."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def servers(first, tmp_path_factory):
    """One as it should be started, and one as a user might; they come up together."""
    logs = tmp_path_factory.mktemp("logs")
    good = start_server(
        first.folder,
        logs / "good.log",
        "--logprobs-mode=processed_logprobs",
        f"--worker-extension-cls={RECEIVER}",
        VLLM_SERVER_DEV_MODE="1",
    )
    bare = start_server(first.folder, logs / "bare.log")
    try:
        good.wait_until_up()
        bare.wait_until_up()
        yield good, bare
    finally:
        good.stop()
        bare.stop()
