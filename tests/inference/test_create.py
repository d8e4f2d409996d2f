"""Engines by the name of their backend."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from turnwise import ConfigError, create_inference_engine, load_model
from turnwise.inference import BaseInferenceEngine, FinishReason, LocalEngine, TransformersEngine


@pytest.fixture(scope="module")
def loaded():
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def folder(loaded, tmp_path_factory):
    place = tmp_path_factory.mktemp("saved")
    loaded.model.save_pretrained(place)
    loaded.tokenizer.save_pretrained(place)
    return place


@pytest.mark.parametrize(
    ("backend", "kind"), [("local", LocalEngine), ("transformers", TransformersEngine)]
)
def test_a_name_a_folder_and_a_model_are_the_same(backend, kind, loaded, folder):
    answers = []
    for model, tokenizer in (
        ("tiny", None),
        (folder, None),
        (str(folder), None),
        (loaded.model, loaded.tokenizer),
        (loaded.model, "tiny"),
    ):
        with create_inference_engine(model, backend, tokenizer=tokenizer) as engine:
            assert isinstance(engine, kind)
            assert (engine.model is loaded.model) == (model is loaded.model)
            answers.append(engine.generate("Hello", max_tokens=8, seed=1).token_ids)
    assert answers == answers[:1] * 5


@pytest.mark.parametrize("backend", ["local", "transformers"])
def test_options_reach_model_and_engine(backend, folder):
    config = {
        "dtype": "float32",
        "device": "cpu",
        "tensor_parallel_size": 1,
        "max_model_len": 32,
        "trust_remote_code": False,
        "overflow": "truncate",
        "max_batch_size": 3,
    }
    with create_inference_engine(folder, backend, config) as engine:
        assert engine.model.dtype is torch.float32
        assert engine.context_length == 32
        output = engine.generate("x" * 30, max_tokens=9, temperature=0)
        assert output.finish_reasons == [FinishReason.CONTEXT]
    with (
        create_inference_engine(folder, backend, {**config, "overflow": "error"}) as engine,
        pytest.raises(ConfigError, match="holds 32"),
    ):
        engine.generate("x" * 30, max_tokens=9)


def test_a_tokenizer_with_code_of_its_own_is_run_only_when_asked(folder, tmp_path):
    place = tmp_path / "own"
    shutil.copytree(folder, place)
    settings = json.loads((place / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "OwnTokenizer"}
    settings |= {"auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}}
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    (place / "own.py").write_text("raise SystemExit('the code ran')\n")
    with pytest.raises(ConfigError, match="trust_remote_code=True"):
        create_inference_engine("tiny", "transformers", tokenizer=place)
    with pytest.raises(SystemExit, match="the code ran"):
        create_inference_engine(
            "tiny", "transformers", {"trust_remote_code": True}, tokenizer=place
        )


def test_one_config_fits_every_backend():
    common = {"dtype": "float32", "max_model_len": 64, "tensor_parallel_size": 1}
    for backend in ("local", "transformers", "scripted"):
        create_inference_engine("tiny", backend, config=common).close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "vlm"}, "vlm.*Did you mean 'vllm'"),
        ({"config": {"dtyp": "float32"}}, "no option 'dtyp'. Did you mean 'dtype'"),
        ({"backend": "scripted", "config": {"policy": str}}, "no option 'policy'"),
        ({"config": {"overflow": "ignore"}}, "overflow got 'ignore', expected 'truncate' or"),
        ({"config": {"tensor_parallel_size": 2}}, "tensor_parallel_size got 2.*vllm or sglang"),
        ({"policy": str}, "policy is for backend='scripted'"),
        ({"model_path": "./nowhere"}, "there is no folder"),
        ({"model_path": 7}, "model_path got int, expected a name"),
        ({"model_path": "http://localhost:1"}, "is a server"),
        ({"model_path": None, "backend": "scripted"}, "a script needs a tokenizer"),
        ({"model_path": object(), "backend": "vllm"}, "model_path got object, expected a name"),
    ],
)
def test_a_wrong_order_is_one_message(arguments, message):
    with pytest.raises(ConfigError, match=message):
        create_inference_engine(**{"model_path": "tiny", **arguments})


def test_a_loaded_model_is_where_it_is(loaded):
    for option in ({"device": "cpu"}, {"dtype": "bfloat16"}):
        with pytest.raises(ConfigError, match="loaded already"):
            create_inference_engine(loaded.model, config=option)
    config = {"device": "auto", "dtype": "auto"}
    create_inference_engine(loaded.model, config=config).close()


class Server(BaseInferenceEngine):
    """Stands where an engine behind a URL would: says what it was made with."""

    context_length = 9

    def __init__(self, url, tokenizer=None, *, overflow="truncate"):
        super().__init__(tokenizer)
        self.url, self.overflow = url, overflow

    async def sample(self, request):
        raise NotImplementedError


class InProcess(Server):
    """The same for one with a model of its own."""

    server = Server

    def __init__(self, model_path, *, tokenizer=None, **options):
        super().__init__(None, tokenizer)
        self.model_path, self.made_with = model_path, options


@pytest.mark.parametrize(
    ("backend", "module", "prefix"), [("vllm", "vllm", "VLLM"), ("sglang", "sglang", "SGLang")]
)
class TestEnginesWithAModelOfTheirOwn:
    @pytest.fixture(autouse=True)
    def recorded(self, monkeypatch, module, prefix, tmp_path):
        import importlib

        home = importlib.import_module(f"turnwise.inference.{module}")
        monkeypatch.setattr(home, f"{prefix}InferenceEngine", InProcess)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def test_options_are_passed_on(self, backend):
        config = {
            "dtype": "bfloat16",
            "device": "auto",
            "tensor_parallel_size": 2,
            "max_model_len": 2048,
            "only_theirs": True,
        }
        engine = create_inference_engine("meta-llama/Llama-2-7b-hf", backend, config)
        assert isinstance(engine, InProcess)
        assert engine.model_path == "meta-llama/Llama-2-7b-hf"
        assert engine.made_with == {k: v for k, v in config.items() if k != "device"}

    def test_a_built_in_name_is_a_folder_for_them(self, backend):
        engine = create_inference_engine("tiny", backend, tokenizer="tiny")
        assert (Path(engine.model_path) / "config.json").is_file()
        assert engine.model_path.startswith(os.environ["XDG_CACHE_HOME"])
        assert engine.tokenizer.encode("a") == load_model("tiny").tokenizer.encode("a")

    @pytest.mark.parametrize("url", ["http://localhost:8000", "https://models.example/v1"])
    def test_a_url_is_a_server(self, backend, url):
        engine = create_inference_engine(url, backend, {"overflow": "error"}, tokenizer="tiny")
        assert isinstance(engine, Server)
        assert (engine.url, engine.overflow) == (url, "error")
        assert engine.tokenizer.encode("a")

    def test_what_a_server_has_decided_cannot_be_chosen(self, backend):
        with pytest.raises(ConfigError, match="dtype and max_model_len cannot be chosen"):
            create_inference_engine(
                "http://localhost:8000", backend, {"dtype": "float32", "max_model_len": 9}
            )

    def test_an_option_that_a_server_does_not_have_is_named(self, backend):
        with pytest.raises(ConfigError, match=r"no option 'overflw'. Did you mean 'overflow'"):
            create_inference_engine("http://localhost:8000", backend, {"overflw": "error"})


ECHO = """
from turnwise.inference import BaseInferenceEngine, FinishReason, GenerationResult
from turnwise.models import load_tokenizer

class Echo(BaseInferenceEngine):
    context_length = 2048

    def __init__(self, model_path, *, tokenizer=None, times=1):
        super().__init__(tokenizer or load_tokenizer("tiny"))
        self.model_path, self.times = model_path, times

    async def sample(self, request):
        ids = (list(request.prompt_ids) * self.times)[: request.max_tokens]
        return GenerationResult(ids, [0.0] * len(ids), FinishReason.LENGTH, self.weight_version)

class SharedEcho(Echo):
    shares_model = True

    def update_weights(self, weights):
        self.weight_version += 1
        return self.weight_version
"""


class TestAnEngineFromOutside:
    @pytest.fixture(autouse=True)
    def installed(self, tmp_path, monkeypatch):
        """A package with an entry point, as pip lays it out."""
        (tmp_path / "echoes.py").write_text(ECHO)
        about = tmp_path / "echoes-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Name: echoes\nVersion: 1\n")
        (about / "entry_points.txt").write_text("[turnwise.engines]\necho = echoes:Echo\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.chdir(tmp_path)

    @pytest.mark.parametrize("backend", ["echo", "echoes:Echo", "echoes.py:Echo"])
    def test_it_is_named_like_one_of_ours(self, backend):
        with create_inference_engine("tiny", backend, {"times": 2, "dtype": "float32"}) as engine:
            assert engine.generate("abc")[0] == "abcabc"
            assert (Path(engine.model_path) / "config.json").is_file()
            with pytest.raises(ConfigError, match="takes no new weights"):
                engine.update_weights({})
        with pytest.raises(ConfigError, match="Did you mean 'times'"):
            create_inference_engine("tiny", backend, {"tims": 2})
        with pytest.raises(ConfigError, match="is a server"):
            create_inference_engine("http://localhost:1", backend)

    def test_what_is_no_engine_is_refused(self):
        with pytest.raises(ConfigError, match="expected a BaseInferenceEngine"):
            create_inference_engine("tiny", "echoes:GenerationResult")

    def test_a_run_samples_with_it(self, tmp_path):
        from turnwise import ConfigStore, Trainer

        settings = {
            "environment.name": "guess-number",
            "inference.backend": "echoes.py:SharedEcho",
            "inference.options.times": 2,
            "training.steps_per_epoch": 1,
            "training.num_epochs": 1,
            "training.batch_size": 2,
            "training.max_log_prob_gap": "null",
            "checkpoint.output_dir": tmp_path / "runs",
        }
        overrides = [f"{name}={value}" for name, value in settings.items()]
        with Trainer(ConfigStore.load(overrides=overrides)) as trainer:
            assert len(trainer.fit()) == 1
