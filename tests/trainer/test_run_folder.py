"""Which folder a run gets, and who may write to it."""

import json
import logging
import os
import types

import pytest

from trainer.runs import Listener, metrics_of
from trainer.worlds import QUICK, Echo, Memory, small_config, small_trainer
from turnwise import ConfigError, ConfigStore
from turnwise.runs.choose_folder import choose_run_folder
from turnwise.runs.run_folder import RunFolder


def finished(folder, *overrides, environment=Echo, **options):
    with small_trainer(folder, environment, *QUICK, *overrides, **options) as trainer:
        trainer.fit()
    return trainer.run_folder


def stopped(folder, *overrides, **options):
    """A run that was interrupted after its first step."""
    listener = Listener(lambda what, number: (what, number) == ("step", 1))
    trainer = small_trainer(folder, Echo, *QUICK, *overrides, reporter=listener, **options)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    return trainer.run_folder


def chosen(config, **options):
    folder, is_resumed = choose_run_folder(config, "Echo", **options)
    return folder.path, is_resumed


def steps(folder):
    return [metrics["step"] for metrics in metrics_of(folder)]


def test_a_finished_run_stays_and_the_next_has_a_number(tmp_path):
    assert finished(tmp_path) == tmp_path / "Echo"
    before = (tmp_path / "Echo" / "metrics.jsonl").read_bytes()
    assert finished(tmp_path) == tmp_path / "Echo-2"
    assert finished(tmp_path) == tmp_path / "Echo-3"
    assert finished(tmp_path, environment=Memory) == tmp_path / "Memory"
    assert (tmp_path / "Echo" / "metrics.jsonl").read_bytes() == before


def test_what_is_in_the_folder(tmp_path):
    folder = finished(tmp_path, "training.eval_episodes=1", "logging.episodes_gb=1")
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names == {
        "config.yaml",
        "run.json",
        "metrics.jsonl",
        "log.txt",
        "episodes",
        "checkpoints",
        "tokenizer.json",
    }
    status = RunFolder(folder).status
    assert (status["status"], status["step"], status["num_steps"]) == ("finished", 2, 2)
    assert status["environment"] == "Echo"
    log = (folder / "log.txt").read_text()
    assert "step 2/2" in log
    assert "INFO finished\n" in log


def test_with_other_settings_there_is_a_new_one(tmp_path):
    folder = stopped(tmp_path)
    assert finished(tmp_path, "training.learning_rate=1e-3") == tmp_path / "Echo-2"
    assert finished(tmp_path, resume="never") == tmp_path / "Echo-3"
    # How often it is saved and how long it goes on are no other run.
    longer = finished(tmp_path, "training.num_epochs=3", "checkpoint.keep_last_n=1")
    assert longer == folder
    assert steps(folder) == [1, 2, 3]


def test_a_named_one_says_which_settings_are_others(tmp_path):
    stopped(tmp_path, "checkpoint.run_name=mine")
    with pytest.raises(ConfigError) as caught:
        finished(tmp_path, "checkpoint.run_name=mine", "training.gamma=0.5", "model.dtype=float32")
    assert "training.gamma was 1.0 and is 0.5" in str(caught.value)
    assert "model.dtype was" in str(caught.value)
    assert "checkpoint.run_name" in str(caught.value)
    with pytest.raises(ConfigError, match="the environment was Echo"):
        finished(tmp_path, "checkpoint.run_name=mine", environment=Memory)
    with pytest.raises(ConfigError, match=r"there is a run in .*mine"):
        finished(tmp_path, "checkpoint.run_name=mine", resume="never")
    assert steps(finished(tmp_path, "checkpoint.run_name=mine")) == [1, 2]


def test_a_named_one_that_is_finished_is_left_as_it_is(tmp_path, capsys):
    folder = finished(tmp_path, "checkpoint.run_name=mine")
    assert "to train on, raise" not in capsys.readouterr().out
    assert finished(tmp_path, "checkpoint.run_name=mine") == folder
    assert "step 2 of 2 is done: to train on, raise" in capsys.readouterr().out
    assert steps(folder) == [1, 2]
    assert steps(finished(tmp_path, "checkpoint.run_name=mine", "training.num_epochs=3")) == [
        *(1, 2, 3)
    ]


def test_resume_where_there_must_be_one(tmp_path):
    with pytest.raises(ConfigError, match="there is no run to resume in"):
        finished(tmp_path, resume="always")
    finished(tmp_path)
    with pytest.raises(ConfigError, match="none with these settings that did not end"):
        finished(tmp_path, resume="always")
    with pytest.raises(ConfigError, match=r"there is no run to resume in .*other"):
        finished(tmp_path, "checkpoint.run_name=other", resume="always")


def test_two_at_once(tmp_path):
    folder = stopped(tmp_path, "checkpoint.run_name=mine")
    named = ConfigStore.load(RunFolder(folder).config_file)
    with RunFolder(folder).held():
        with pytest.raises(ConfigError, match=r"another process is training in .*mine"):
            finished(tmp_path, "checkpoint.run_name=mine")
        assert chosen(named) == (folder, True)
    unnamed = stopped(tmp_path)
    with RunFolder(unnamed).held():
        assert finished(tmp_path) == tmp_path / "Echo-2"
    assert finished(tmp_path) == unnamed


def test_a_folder_of_somebody_else(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "Echo").mkdir()
    (tmp_path / "Echo" / "config.yaml").write_text("training: {batch_size: 3}")
    with pytest.raises(ConfigError, match="something that is not a run"):
        finished(tmp_path, "checkpoint.run_name=mine")
    assert finished(tmp_path) == tmp_path / "Echo-2"
    assert (tmp_path / "Echo" / "config.yaml").read_text() == "training: {batch_size: 3}"


@pytest.mark.parametrize("left", [["log.txt", ".run.json.saving-12"], [], ["run.json"]])
def test_one_that_was_killed_as_it_began(tmp_path, left):
    (tmp_path / "mine").mkdir()
    for name in [".lock", *left] if left else []:
        (tmp_path / "mine" / name).touch()
    if "run.json" in left:  # but no settings
        RunFolder(tmp_path / "mine").write_status(status="running", environment="Echo")
    assert steps(finished(tmp_path, "checkpoint.run_name=mine")) == [1, 2]


def test_without_its_status_a_run_is_not_resumed(tmp_path):
    (stopped(tmp_path, "checkpoint.run_name=Echo") / "run.json").unlink()
    with pytest.raises(ConfigError, match=r"run\.json is missing\. .* restore it"):
        finished(tmp_path, "checkpoint.run_name=Echo")
    assert finished(tmp_path) == tmp_path / "Echo-2"


@pytest.mark.parametrize("name", ["../up", "", "-x"])
def test_names_that_are_no_names(tmp_path, name):
    with pytest.raises(ConfigError, match=r"checkpoint\.run_name got"):
        finished(tmp_path, f"checkpoint.run_name={name!r}")


LOWER = "training.learning_rate=1e-5"


class TestOtherSettings:
    def test_a_named_run_takes_those_that_may_change_and_records_them(self, tmp_path):
        folder = stopped(tmp_path, "checkpoint.run_name=mine")
        listener = Listener()
        overrides = ("checkpoint.run_name=mine", LOWER, "checkpoint.keep_last_n=2")
        assert finished(tmp_path, *overrides, reporter=listener) == folder
        usual = small_config(tmp_path).training.learning_rate
        assert [metrics["learning_rate"] for metrics in metrics_of(folder)] == [usual, 1e-5]
        assert listener.said[0] == (
            f"from step 2 on: training.learning_rate was {usual} and is 1e-05"
        )
        # Where and how often it is saved is no matter for the record.
        assert RunFolder(folder).changes == [
            {"step": 1, "settings": {"training.learning_rate": [usual, 1e-5]}}
        ]
        assert RunFolder(folder).settings().training.learning_rate == 1e-5
        again = Listener()
        finished(tmp_path, *overrides, "training.num_epochs=3", reporter=again)
        assert not any("learning_rate" in line for line in again.said)
        assert len(RunFolder(folder).changes) == 1

    def test_the_weight_of_the_kl_penalty_takes_effect(self, tmp_path):
        penalty = ("training.use_kl_in_reward=true", "checkpoint.run_name=mine")
        stopped(tmp_path, *penalty, "training.kl_coef=0.25")
        folder = finished(tmp_path, *penalty, "training.kl_coef=0.5")
        assert [metrics["kl_coef"] for metrics in metrics_of(folder)] == [0.25, 0.5]

    def test_one_that_may_not_says_why(self, tmp_path):
        stopped(tmp_path, "checkpoint.run_name=mine")
        with pytest.raises(ConfigError, match="may not change: it decides which weights there are"):
            finished(tmp_path, "checkpoint.run_name=mine", "training.lora_rank=2", LOWER)
        with pytest.raises(ConfigError, match="the reference model that it needs"):
            finished(tmp_path, "checkpoint.run_name=mine", "training.kl_loss_coef=0.1")


class TestDamagedStatus:
    def test_it_is_an_error_and_nothing_is_begun(self, tmp_path):
        folder = stopped(tmp_path)
        status_file = RunFolder(folder).status_file
        whole = status_file.read_bytes()
        for content in (b"", b"[]", b"{"):
            status_file.write_bytes(content)
            for name in ("null", "Echo"):
                with pytest.raises(ConfigError, match=str(status_file)):
                    finished(tmp_path, f"checkpoint.run_name={name}")
            assert os.listdir(tmp_path) == ["Echo"]
        status_file.write_bytes(whole)
        assert finished(tmp_path) == folder
        assert steps(folder) == [1, 2]

    def test_settings_that_cannot_be_read_are_mentioned(self, tmp_path, caplog):
        folder = stopped(tmp_path)
        (folder / "config.yaml").write_text("training: {learning_rat: 1}")
        with caplog.at_level(logging.WARNING, "turnwise"):
            assert finished(tmp_path) == tmp_path / "Echo-2"
        assert "Echo is not resumed: " in caplog.text
        assert "training.learning_rat" in caplog.text


def ones(trajectory):
    return 1.0


def twos(trajectory):
    return 2.0


def test_a_changed_reward_begins_a_new_run_unless_the_old_one_is_asked_for(tmp_path, caplog):
    old = stopped(tmp_path, reward_fn=ones)
    # A script keeps the name of its function while the code behind it changes.
    other = types.FunctionType(twos.__code__, twos.__globals__, "ones")
    other.__qualname__, other.__module__ = ones.__qualname__, ones.__module__
    config = ConfigStore.load(RunFolder(old).config_file)
    identity = json.loads((old / "run.json").read_text())["identity"]
    assert chosen(config, identity=identity) == (old, True)
    changed = {**identity, "reward": "another"}
    with caplog.at_level(logging.WARNING, "turnwise"):
        assert chosen(config, identity=changed) == (tmp_path / "Echo-2", False)
    assert "the reward changed since" in caplog.text
    assert chosen(config, resume="always", identity=changed) == (old, True)
    config.checkpoint.run_name = "Echo"
    with pytest.raises(ConfigError, match=r"the reward changed since the run .*resume=True"):
        chosen(config, identity=changed)
    assert finished(tmp_path, reward_fn=ones) == old
    assert finished(tmp_path, reward_fn=other) != old
