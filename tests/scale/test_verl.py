"""VERL's trainer without VERL: what it reads and computes, and what it tells about a run."""

import json
import logging

import pytest

from trainer.worlds import Echo
from turnwise import ConfigError, ConfigStore, EpisodeLimits
from turnwise.scale.verl import trainer as verl_trainer
from turnwise.scale.verl.running import METRICS_LOG
from turnwise.scale.verl.settings import Resources, to_verl_config
from turnwise.scale.verl.trainer import CustomRayPPOTrainer, take_metrics
from turnwise.tools import tool

LENGTH = "data.max_response_length"
SETTINGS = ("limits.max_turns=4", "inference.max_tokens=100")


def response_length(tmp_path, *overrides, limits=None):
    config = ConfigStore.load(overrides=[*SETTINGS, *overrides])
    return to_verl_config(config, Resources("tiny", 8192, 0, tmp_path), limits=limits)[LENGTH]


def test_the_length_of_a_response_follows_the_limits(tmp_path):
    assert response_length(tmp_path) == 4 * 100 + 3 * 256
    assert response_length(tmp_path, "limits.max_turns=2") == 2 * 100 + 256
    assert response_length(tmp_path, "limits.max_tokens_per_turn=50") == 4 * 50 + 3 * 256
    assert response_length(tmp_path, "limits.max_tokens=300") == 300
    limits = EpisodeLimits(max_turns=3, max_tokens_per_turn=70)
    assert response_length(tmp_path, limits=limits) == 3 * 70 + 2 * 256


def test_a_half_line_of_verls_logger_is_left_out(tmp_path, caplog):
    path = tmp_path / "verl-metrics.jsonl"
    # A line ends with a line feed alone.
    path.write_text('{"step": 1, "data": {"x": "a\u2028b"}}\n{"step": 3, "da', encoding="utf-8")
    with caplog.at_level(logging.WARNING, "turnwise"):
        assert take_metrics(tmp_path) == [(1, {"x": "a\u2028b"})]
    assert len(caplog.records) == 1
    assert not path.exists()


def test_the_turns_are_those_of_the_environment_that_is_played(tmp_path, monkeypatch):
    class Sized(Echo):
        def __init__(self, size):
            super().__init__()
            self.max_steps = 10 * size

    class WithTool(Echo):
        @tool
        def look(self) -> str:
            """Look around."""
            return "nothing"

    monkeypatch.setattr(verl_trainer, "compose", lambda settings, _overrides: settings)
    monkeypatch.setattr(verl_trainer, "check", lambda *_arguments: None)

    def turns(environment, *overrides, **options):
        overrides = [f"checkpoint.output_dir={tmp_path}", *overrides]
        config = ConfigStore.load(overrides=overrides)
        trainer = CustomRayPPOTrainer(config, environment, reporter=None, **options)
        return trainer.verl_config()["actor_rollout_ref.rollout.multi_turn.max_assistant_turns"]

    size = "environment.params.size=9"
    assert turns(Sized, size) == 90
    assert turns(Sized, size, "inference.max_turns=7") == 7
    assert turns(Sized, size, limits=EpisodeLimits(max_turns=5)) == 5
    assert turns("grid-world", "environment.params.size=6") == 36
    # Calls of tools are turns too, of which there may be 64.
    assert turns(WithTool) == 64


class WithoutVerl(CustomRayPPOTrainer):
    """What VERL does is to write its metrics: here by hand, so that VERL need not be there."""

    def _start(self, num_steps):
        return self

    def fit_as_verl_does(self):
        lines = [
            {
                "step": n,
                "data": {"training/global_step": n, "critic/score/mean": 0.0, "reward_std": 0.0},
            }
            for n in range(1, 13)
        ]
        (self.run_folder / METRICS_LOG).write_text("\n".join(map(json.dumps, lines)))


def trained(folder, monkeypatch, **options):
    config = ConfigStore()
    config.checkpoint.output_dir = str(folder)
    config.training.num_epochs, config.training.steps_per_epoch = 1, 12
    trainer = WithoutVerl(config, Echo, **options)
    fit = trainer.fit
    monkeypatch.setattr(trainer, "fit", trainer.fit_as_verl_does)
    fit()
    return trainer


def test_the_folder_comes_first_and_none_is_silent(tmp_path, capfd, monkeypatch):
    trainer = trained(tmp_path, monkeypatch)
    assert capfd.readouterr().out.splitlines() == [
        f"run folder {trainer.run_folder}",
        "training tiny on Echo-verl, 12 steps",
        "finished after 0:00",  # VERL itself prints the steps
    ]
    assert len(trainer.metrics_history) == 12
    silent = trained(tmp_path, monkeypatch, reporter=None)
    assert capfd.readouterr() == ("", "")
    assert silent._own_settings()["trainer.logger"] == ["file"]


def test_what_our_trainer_refuses_is_refused_before_there_is_a_folder(tmp_path):
    config = ConfigStore()
    config.checkpoint.output_dir = str(tmp_path)
    trainer = WithoutVerl(config, dataset=[{"prompt": "Say something."}], reporter=None)
    with pytest.raises(ConfigError, match="have no 'answer', and there is no reward function"):
        trainer.fit()
    assert list(tmp_path.iterdir()) == []
