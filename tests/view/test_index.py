"""The index follows the run's files: new ones, rewritten ones, ones that a resume took back."""

import contextlib
import os
import shutil
import sqlite3
import threading

import pytest

from trainer.runs import Listener
from trainer.worlds import Memory, small_trainer
from turnwise.runs.episode_store import EpisodeStore
from turnwise.view.index import VERSION, Index, IndexBroken, index_path, remove_old_indexes
from turnwise.view.query import EpisodeQuery
from view.runs_to_view import SMALL, crowd, said, write_run
from view.serving import open_library, refresh


def ids(run, **query):
    with run.index.connection() as db:
        asked = [("limit", "500"), *query.items()]
        return {e["id"] for e in EpisodeQuery.parse(asked).run(db)["episodes"]}


def numbers(run):
    """How much is in each table."""
    tables = ("files", "episodes", "shown", "called", "texts", "uses")
    with run.index.connection() as db:
        return {t: db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables}


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path / "run", {1: crowd(5), 2: [said("alpha"), said("beta")]})
    library = open_library(tmp_path)
    yield library.get("run")
    library.close()


def store_of(run):
    return EpisodeStore(run.files.folder.episodes, 1e9)


class TestChanges:
    def test_a_new_file_is_seen(self, run):
        store_of(run).write(3, [said("gamma")])
        refresh(run)
        assert ids(run, step="3") == {"train-3-0"}
        assert run.indexed() == {"files": 3, "of": 3}

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

    def test_nothing_is_left_of_what_went_away(self, run):
        before = numbers(run)
        store_of(run).write(3, crowd(20, 5))
        refresh(run)
        assert numbers(run) != before
        store_of(run).rewind(2)
        refresh(run)
        assert numbers(run) == before
        with run.index.connection() as db:
            db.execute("INSERT INTO words(words) VALUES ('integrity-check')")

    def test_a_file_that_is_no_file_of_episodes_harms_nobody(self, run):
        (run.files.folder.episodes / "step-00000004.npz").write_bytes(b"no zip")
        refresh(run)
        assert ids(run, step="4") == set()
        assert ids(run, step="2") == {"train-2-0", "train-2-1"}
        assert run.indexed() == {"files": 3, "of": 3}

    def test_the_run_folder_itself_is_left_alone(self, run):
        def files():
            return {p: p.stat().st_mtime_ns for p in run.files.path.rglob("*")}

        before = files()
        refresh(run)
        run.summary(), run.detail(), run.episode("train-1-0")
        assert files() == before

    def test_the_folder_may_be_gone(self, run):
        shutil.rmtree(run.files.path)
        refresh(run)
        assert ids(run) == set()


class TestTheDatabase:
    def test_it_is_in_the_cache_and_used_again(self, run, cache):
        assert run.index.path.is_relative_to(cache)
        other = open_library(run.files.path).get("run")
        assert other.index.path == run.index.path
        assert ids(other) == ids(run)

    @pytest.mark.parametrize("damage", [b"", b"not a database" * 1000, None])
    def test_a_broken_one_is_made_anew(self, run, damage):
        path = run.index.path
        run.index.close()
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        if damage is None:
            data = bytearray(path.read_bytes())
            data[4096:] = os.urandom(len(data) - 4096)
            path.write_bytes(data)
        else:
            path.write_bytes(damage)
        library = open_library_until_it_is_well(run.files.path)
        assert ids(library.get("run"), text="alpha") == {"train-2-0"}

    def test_one_that_breaks_under_the_viewer_is_made_anew(self, run):
        path = run.index.path
        with run.index.connection() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with open(path, "r+b") as file:
            file.seek(100)
            file.write(os.urandom(path.stat().st_size - 100))
        assert len(ids_at_last(run)) == 7

    def test_one_of_another_version_is_made_anew(self, run):
        run.index.close()
        with sqlite3.connect(run.index.path) as db:
            db.execute(f"PRAGMA user_version = {VERSION + 1}")
            db.execute("DROP TABLE episodes")
        db.close()
        assert len(ids(open_library(run.files.path).get("run"))) == 7

    def test_two_viewers_at_once(self, tmp_path):
        write_run(tmp_path / "run", {step: crowd(6, step) for step in range(1, 13)})
        libraries = [open_library_of(tmp_path) for _ in range(2)]
        runs = [library.get("run") for library in libraries]
        threads = [threading.Thread(target=refresh, args=(run,)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for run in runs:
            assert len(ids(run)) == 72
            assert run.indexed() == {"files": 12, "of": 12}

    def test_six_viewers_make_it_at_once(self, tmp_path):
        for attempt in range(8):
            indexes = [Index(tmp_path / f"{attempt}.sqlite") for _ in range(6)]
            together = threading.Barrier(len(indexes))
            failures = []

            def write(number, indexes=indexes, together=together, failures=failures):
                together.wait()
                try:
                    with indexes[number].writing() as db:
                        db.execute("INSERT INTO called VALUES ('look', ?)", (number,))
                except Exception as error:
                    failures.append(error)

            threads = [threading.Thread(target=write, args=(n,)) for n in range(len(indexes))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failures == []
            with indexes[0].connection() as db:
                assert db.execute("SELECT count(*) FROM called").fetchone() == (6,)
            for index in indexes:
                index.close()

    def test_what_another_viewer_made_again_is_kept(self, tmp_path):
        one, two = (Index(tmp_path / "run.sqlite") for _ in range(2))
        for index in (one, two):
            with index.connection():
                pass
        with pytest.raises(IndexBroken), one.connection() as db:
            raise sqlite3.DatabaseError("file is not a database")
        with one.writing() as db:
            db.execute("INSERT INTO called VALUES ('look', 1)")
        with pytest.raises(IndexBroken), two.connection() as db:
            raise sqlite3.DatabaseError("file is not a database")
        with two.connection() as db:
            assert db.execute("SELECT count(*) FROM called").fetchone() == (1,)
        one.close()
        two.close()

    def test_old_ones_are_removed(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        fresh, old = index_path(tmp_path / "a"), index_path(tmp_path / "b")
        for path in (fresh, old):
            made = Index(path)
            with made.connection():
                pass
            made.close()
        foreign = fresh.with_name(f"abc-{VERSION + 1}.sqlite")
        foreign.touch()
        os.utime(old, (0, 0))
        remove_old_indexes()
        assert fresh.exists()
        assert not old.exists()
        assert not foreign.exists()

    def test_a_home_that_cannot_be_written(self, tmp_path, monkeypatch):
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        path = index_path(tmp_path)
        assert path.parent.is_dir()
        assert not path.is_relative_to(tmp_path)


def open_library_of(folder):
    from turnwise.view.library import Library

    library = Library([folder])
    library.find()
    return library


def open_library_until_it_is_well(folder):
    library = open_library_of(folder)
    ids_at_last(library.get("run"))
    return library


def ids_at_last(run):
    """What is found once the damage was seen; it takes two looks at most."""
    from turnwise.view.index import IndexBroken

    for _ in range(3):
        try:
            refresh(run)
            return ids(run)
        except IndexBroken:
            continue
    raise AssertionError("it stays broken")


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


def test_only_the_last_files_are_kept_as_they_were_read(tmp_path, monkeypatch):
    from turnwise.view import run_files

    monkeypatch.setattr(run_files, "_MOST_FILES", 2)
    folder = write_run(tmp_path / "run", {step: [said("Hello")] for step in range(1, 6)})
    run = open_library(folder).get("run")
    first = run.episodes(("train", 1))
    assert run.episodes(("train", 1)) is first
    run.episodes(("train", 2)), run.episodes(("train", 3))
    assert run.episodes(("train", 3)) is run.episodes(("train", 3))
    assert run.episodes(("train", 1)) is not first
    store_of(run).write(1, [said("Rewritten")])
    refresh(run)
    assert run.episode("train-1-0")[2].agent.turns[0].text == "Rewritten"


def test_a_long_run_is_not_waited_for_by_the_doctor(tmp_path, monkeypatch):
    from turnwise.view import runs

    monkeypatch.setattr(runs, "_PATIENCE_SECONDS", 0.0)
    sick = {"reward": 0.0, "reward_std": 0.0, "success": 0.0}
    folder = write_run(tmp_path / "run", dict.fromkeys(range(1, 9), ()), metrics=sick)
    run = open_library(folder).get("run")
    assert run.detail()["examined"] == {"steps": 0, "of": 8}
    assert run.metrics.examine(60.0)
    assert run.detail()["examined"] == {"steps": 8, "of": 8}
    assert not run.metrics.examine(60.0)  # all was said


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


def test_what_the_doctor_said_stands_at_its_step(tmp_path):
    sick = {"reward": 0.0, "reward_std": 0.0, "success": 0.0}
    folder = write_run(tmp_path / "run", dict.fromkeys(range(1, 9), ()), metrics=sick)
    run = open_library(folder).get("run")
    run.metrics.examine(60.0)  # a request would wait for only 0.1 s
    (finding,) = run.detail()["findings"]
    assert (finding["name"], finding["step"]) == ("constant-reward", 5)
    assert "earned exactly 0" in finding["text"]
    assert finding["fix"]
