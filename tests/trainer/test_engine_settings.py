"""`inference.url` and `inference.options`: what reaches the engine of a run."""

import json
from types import SimpleNamespace

import pytest

from inference.sglang_runtime import TinySGLang
from inference.sglang_server import SGLangServer
from inference.zoo import SUPPORTED, make
from trainer.worlds import Memory, small_model, small_trainer
from turnwise import ConfigError, ConfigStore
from turnwise.trainer import assembly
from turnwise.trainer.assembly import make_engine

SHORT = ("training.warm_start=null", "training.batch_size=4", "training.max_log_prob_gap=1e-3")


def test_a_run_trains_through_a_server_that_runs_already(tmp_path):
    """Each step is sampled by the weights that the step before it has published.

    The server begins with other weights than the run, as after an earlier run.
    """
    model, tokenizer = small_model(seed=5)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    runtime = TinySGLang(model, tokenizer, str(tmp_path / "model"))
    with (
        SGLangServer(runtime) as server,
        small_trainer(
            tmp_path / "runs",
            Memory,
            *SHORT,
            "inference.backend=sglang",
            f"inference.url={server.url}",
            f"inference.options.weights_dir={tmp_path}",
            f"model.local_path={tmp_path / 'model'}",
            reward_fn=lambda trajectory: sum(map(ord, "".join(trajectory.actions))) / 1000,
        ) as trainer,
    ):
        trainer.fit(1, 3)
        history = trainer.metrics_history
    assert all(metrics["grad_norm"] > 0 for metrics in history)
    assert [metrics["gap_max"] < 1e-3 for metrics in history] == [True] * 3
    updates = server.asked("/update_weights_from_disk")
    assert len(updates) == 4
    assert all(body["model_path"].startswith(str(tmp_path)) for body in updates)
    (record,) = tmp_path.glob("runs/*/run.json")
    assert json.loads(record.read_text())["engine"]["class"] == "SGLangServerEngine"


def test_options_reach_the_engine():
    model, tokenizer = small_model()
    config = ConfigStore.load(overrides=["inference.options={max_batch_size: 3}"])
    with make_engine(config, model, tokenizer) as engine:
        assert engine.options["max_batch_size"] == 3
    config.inference.options = {"max_batch": 3}
    with pytest.raises(ConfigError, match=r"no option 'max_batch'. Did you mean 'max_batch_size'"):
        make_engine(config, model, tokenizer)


class TestRotaryLimits:
    """vLLM and SGLang take the frequencies of the learner, or are refused."""

    def make(self, monkeypatch, name, *overrides):
        """The options with which the engine would be made."""

        def create(model_path, backend, options, **_):
            length = options.get("max_model_len", 4096)
            return SimpleNamespace(options=options, context_length=length, close=lambda: None)

        monkeypatch.setattr(assembly, "create_inference_engine", create)
        config = ConfigStore.load(overrides=["inference.backend=vllm", *overrides])
        return make_engine(config, make(SUPPORTED[name]()), None).options

    def test_an_engine_of_the_run_takes_no_longer_texts(self, monkeypatch):
        for given, expected in ((None, 80), (64, 64), (4096, 80)):
            overrides = [f"inference.options.max_model_len={given}"] if given else []
            options = self.make(monkeypatch, "phi3, longrope", *overrides)
            assert options["max_model_len"] == expected
        assert "max_model_len" not in self.make(monkeypatch, "phi3")

    def test_a_server_that_takes_longer_texts_is_refused(self, monkeypatch):
        with pytest.raises(ConfigError, match=r"takes 4096 tokens. Start it with at most 80"):
            self.make(monkeypatch, "phi3, longrope", "inference.url=http://localhost:1")

    def test_dynamic_frequencies_are_refused(self, monkeypatch):
        with pytest.raises(ConfigError, match=r"rope_type 'dynamic'.*Set it to 'local'"):
            self.make(monkeypatch, "llama, dynamic rope")
