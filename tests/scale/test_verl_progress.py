"""VERL's trainer follows the rule of the others: the folder first, the doctor last, None silent."""

import json

import pytest

from trainer.runs import Listener
from trainer.worlds import Echo
from turnwise import ConfigError, ConfigStore
from turnwise.scale.verl.running import METRICS_LOG
from turnwise.scale.verl.trainer import CustomRayPPOTrainer


class WithoutVerl(CustomRayPPOTrainer):
    """What VERL does is to write its metrics: here by hand, so that VERL need not be there."""

    def _start(self, num_steps, num_held_out=None, extra=()):
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


def test_the_folder_comes_first_and_the_doctor_last(tmp_path, capfd, monkeypatch):
    trainer = trained(tmp_path, monkeypatch)
    first, what, *ending = capfd.readouterr().out.splitlines()
    assert first == f"run folder {trainer.run_folder}"
    assert what == "training tiny on Echo-verl, 12 steps"
    assert ending[0] == "finished after 0:00"  # VERL itself prints the steps
    assert all(line.startswith("doctor: ") for line in ending[1:])
    assert len(ending) > 1  # twelve steps that all earned the same


def test_none_is_silent_and_an_object_is_told_the_steps(tmp_path, capfd, monkeypatch):
    silent = trained(tmp_path, monkeypatch, reporter=None)
    assert capfd.readouterr() == ("", "")
    assert silent._own_settings()["trainer.logger"] == ["file"]
    listener = Listener()
    trained(tmp_path, monkeypatch, reporter=listener)
    assert listener.steps == list(range(1, 13))
    assert listener.outcomes == ["finished"]


def test_what_our_trainer_refuses_is_refused_before_there_is_a_folder(tmp_path):
    config = ConfigStore()
    config.checkpoint.output_dir = str(tmp_path)
    trainer = WithoutVerl(config, dataset=[{"prompt": "Say something."}], reporter=None)
    with pytest.raises(ConfigError, match="have no 'answer', and there is no reward function"):
        trainer.fit()
    assert list(tmp_path.iterdir()) == []
