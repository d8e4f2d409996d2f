"""The list follows the files: new ones, rewritten ones, ones that a resume took back."""

import contextlib
import shutil

import pytest

from trainer.runs import Listener
from trainer.worlds import Memory, small_trainer
from turnwise.runs.episode_store import EpisodeStore
from turnwise.view.episodes import find_episodes
from turnwise.view.runs import Library
from view.runs_to_view import SMALL, crowd, said, write_run
from view.serving import open_library, refresh


def ids(run, **query):
    asked = [("limit", "500"), *query.items()]
    return {e["id"] for e in find_episodes(run.episodes, asked)["episodes"]}


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path / "run", {1: crowd(5), 2: [said("alpha"), said("beta")]})
    return open_library(tmp_path).get("run")


def store_of(run):
    return EpisodeStore(run.files.folder.episodes, 1e9)


class TestChanges:
    def test_a_file_that_is_rewritten_replaces_what_it_said(self, run):
        store_of(run).write(2, [said("delta")])
        refresh(run)
        assert ids(run, step="2") == {"train-2-0"}
        assert ids(run, text="delta") == {"train-2-0"}
        assert ids(run, text="alpha") == set()

    def test_a_rewound_run_loses_its_later_steps(self, run):
        store_of(run).rewind(1)
        refresh(run)
        assert ids(run) == {f"train-1-{n}" for n in range(5)}
        assert ids(run, text="beta") == set()

    def test_episodes_of_a_run_that_nobody_opened_are_counted(self, run):
        library = Library([run.folder.path])
        library.find()
        other = library.get("run")
        other.refresh()
        assert (other.summary()["num_episodes"], other.episodes.table.num_rows) == (7, 0)
        assert other.indexed() == {"files": 2, "of": 2}
        other.open_episodes(0.0)  # too short for all: the newest first
        assert ids(other) == {"train-2-0", "train-2-1"}
        assert other.summary()["num_episodes"] == 7
        assert other.indexed()["files"] < other.indexed()["of"]
        other.refresh()
        assert len(ids(other)) == 7

    def test_a_step_without_episodes_is_read_once(self, run):
        store_of(run).write(3, [])
        refresh(run)
        assert run.indexed() == {"files": 3, "of": 3}
        assert not run.refresh()

    def test_the_run_folder_itself_is_left_alone(self, run):
        def files():
            return {p: p.stat().st_mtime_ns for p in run.folder.path.rglob("*")}

        before = files()
        refresh(run)
        run.summary(), run.detail(), run.episode("train-1-0")
        assert files() == before

    def test_the_folder_may_be_gone(self, run):
        shutil.rmtree(run.folder.path)
        refresh(run)
        assert ids(run) == set()


def test_a_run_that_is_resumed(tmp_path):
    """The real trainer: stopped after two steps, set back to the first, and run to its end."""
    steps = ("training.num_epochs=3", "checkpoint.save_interval=3")
    listener = Listener(lambda what, number: (what, number) == ("step", 2))
    with (
        small_trainer(tmp_path, Memory, *SMALL, *steps, reporter=listener) as trainer,
        contextlib.suppress(KeyboardInterrupt),
    ):
        trainer.fit()
    library = open_library(tmp_path)
    run = library.get("real")
    assert ids(run, kind="train") == {f"train-{s}-{n}" for s in (1, 2) for n in range(4)}
    with small_trainer(tmp_path, Memory, *SMALL, *steps) as trainer:
        trainer.fit()
    refresh(run)
    assert ids(run, kind="train") == {f"train-{s}-{n}" for s in (1, 2, 3) for n in range(4)}
    assert run.metrics.columns()["steps"] == [1, 2, 3]
    assert run.summary()["status"] == "finished"


def test_metrics_that_are_rewound(tmp_path):
    from turnwise.runs.metrics_log import MetricsLog

    run_folder = write_run(tmp_path / "run", {1: [], 2: [], 3: []})
    run = open_library(run_folder).get("run")
    log = MetricsLog(run_folder / "metrics.jsonl")
    log.rewind(1)
    run.refresh()
    assert run.metrics.columns()["steps"] == [1]
    log.append({"step": 2, "reward": 0.75})
    with open(log.path, "ab") as file:
        file.write(b'{"step": 3, "rew')  # half a line, as a crash leaves it
    run.refresh()
    assert run.metrics.columns()["series"]["reward"] == [0.1, 0.75]
