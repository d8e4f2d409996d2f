"""Which folder a run gets, and who may write to it."""

import pytest

from trainer.runs import Listener, metrics_of
from trainer.worlds import Echo, Memory, small_config, small_trainer
from turnwise import ConfigError
from turnwise.runs.run_folder import RunFolder, choose_run_folder

QUICK = (
    "training.batch_size=2",
    "training.num_epochs=2",
    "training.steps_per_epoch=1",
    "training.warm_start=null",
    "inference.max_tokens=2",
    "logging.episodes_gb=0",
)
NAMED = (*QUICK, "checkpoint.run_name=mine")


def finished(folder, *overrides, environment=Echo, **options):
    with small_trainer(folder, environment, *QUICK, *overrides, **options) as trainer:
        trainer.fit()
    return trainer.run_folder


def stopped(folder, *overrides):
    """A run that was interrupted after its first step."""
    listener = Listener(lambda what, number: (what, number) == ("step", 1))
    trainer = small_trainer(folder, Echo, *QUICK, *overrides, reporter=listener)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    return trainer.run_folder


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
    assert log.rstrip().endswith("finished")


def test_an_unfinished_one_with_the_same_settings_goes_on(tmp_path):
    folder = stopped(tmp_path)
    assert steps(folder) == [1]
    listener = Listener()
    assert finished(tmp_path, reporter=listener) == folder
    assert steps(folder) == [1, 2]
    assert any(line.startswith("resuming from step 1") for line in listener.said)


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


def test_a_named_one_that_is_finished_is_left_as_it_is(tmp_path):
    folder = finished(tmp_path, "checkpoint.run_name=mine")
    assert finished(tmp_path, "checkpoint.run_name=mine") == folder
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
    named = small_config(tmp_path, *NAMED)
    with RunFolder(folder).held():
        with pytest.raises(ConfigError, match=r"another process is training in .*mine"):
            finished(tmp_path, "checkpoint.run_name=mine")
        assert choose_run_folder(named, "Echo") == (RunFolder(folder), True)
    unnamed = stopped(tmp_path)
    with RunFolder(unnamed).held():
        assert finished(tmp_path) == tmp_path / "Echo-2"
    assert finished(tmp_path) == unnamed


def test_a_folder_of_somebody_else(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "Echo").mkdir()
    (tmp_path / "Echo" / "config.yaml").write_text("training: {batch_size: 3}")
    with pytest.raises(ConfigError, match="exists and is not a run"):
        finished(tmp_path, "checkpoint.run_name=mine")
    assert finished(tmp_path) == tmp_path / "Echo-2"
    assert (tmp_path / "Echo" / "config.yaml").read_text() == "training: {batch_size: 3}"


@pytest.mark.parametrize("left", [[".lock"], [".lock", "log.txt", ".run.json"], []])
def test_one_that_was_killed_as_it_began(tmp_path, left):
    (tmp_path / "mine").mkdir()
    for name in left:
        (tmp_path / "mine" / name).touch()
    folder = finished(tmp_path, "checkpoint.run_name=mine")
    assert steps(folder) == [1, 2]


def test_one_that_was_killed_before_it_wrote_its_settings(tmp_path):
    RunFolder(tmp_path / "mine").path.mkdir()
    RunFolder(tmp_path / "mine").write_status(status="running", environment="Echo")
    assert steps(finished(tmp_path, "checkpoint.run_name=mine")) == [1, 2]


@pytest.mark.parametrize("name", ["../up", "a/b", "..", "", "-x"])
def test_names_that_are_no_names(tmp_path, name):
    with pytest.raises(ConfigError, match=r"checkpoint\.run_name got"):
        finished(tmp_path, f"checkpoint.run_name={name!r}")
