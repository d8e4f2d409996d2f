"""What a checkpoint holds, and models that are read from one."""

import json

import pytest

from trainer.worlds import Echo, small_trainer, training
from turnwise import CheckpointError, ConfigError
from turnwise.runs.checkpoints import save_checkpoint_to
from turnwise.trainer.state import find_checkpoint

QUICK = (
    *training("batch_size=2 num_epochs=2 steps_per_epoch=1 warm_start=null"),
    "inference.max_tokens=2",
    "logging.episodes_gb=0",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    settings = (*QUICK, "checkpoint.best_metric=step", "checkpoint.keep_last_n=2")
    with small_trainer(folder, Echo, *settings) as trainer:
        trainer.fit()
    return trainer.run_folder


def test_nothing_in_it_is_pickled(run):
    for folder in (run / "checkpoints").glob("step-*"):
        assert sorted(path.suffix for path in folder.iterdir()) == [
            *(".json", ".json", ".safetensors", ".safetensors", ".yaml")
        ]
        state = json.loads((folder / "state.json").read_text())
        assert state["progress"]["step"] == int(folder.name[-8:])


def test_one_of_another_layout_is_refused(tmp_path):
    def write(folder):
        (folder / "state.json").write_text('{"progress": {"step": 1}, "random": {}}')

    old = save_checkpoint_to(tmp_path / "old", write, 1)
    with (
        small_trainer(tmp_path, Echo, *QUICK) as trainer,
        pytest.raises(ConfigError, match="was saved by another version of turnwise"),
    ):
        trainer.load_checkpoint(old.path)


def test_finding_one(run, tmp_path):
    assert find_checkpoint(run).step == find_checkpoint(run, "best").step == 2
    assert find_checkpoint(run / "checkpoints" / "step-00000001").step == 1
    with pytest.raises(CheckpointError, match="neither a run nor a checkpoint"):
        find_checkpoint(tmp_path)
    (tmp_path / "run.json").touch()
    with pytest.raises(CheckpointError, match="has not saved a checkpoint yet"):
        find_checkpoint(tmp_path)
