"""What a run is evaluated on, and the one number that all doors say of it."""

import json
import re

import pytest
from typer.testing import CliRunner

from trainer.runs import Listener, metrics_of
from trainer.worlds import Echo, small_trainer, training
from turnwise.cli import app
from turnwise.cli.export import model_card
from turnwise.cli.train import _closing
from turnwise.data.held_out import split_rows
from turnwise.runs.checkpoints import CheckpointStore
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.headline import headline
from turnwise.runs.run_folder import RunFolder
from view.serving import open_library

ROWS = [{"letter": "abcd"[i % 4], "number": i} for i in range(64)]
SETTINGS = (
    *training("warm_start=null batch_size=24 num_epochs=2 eval_episodes=3"),
    "inference.max_tokens=1",
)


class Given(Echo):
    """The letter of its task."""

    def reset(self):
        super().reset()
        self.letter = self.task["letter"]
        return self.letter

    def step(self, action):
        observation, reward, done, info = super().step(action)
        return observation, reward, done, {**info, "number": self.task["number"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with small_trainer(tmp_path_factory.mktemp("runs"), Given, *SETTINGS, dataset=ROWS) as trainer:
        trainer.fit()
    return trainer


def played(run, kind):
    store = EpisodeStore(RunFolder(run.run_folder).episodes, 1)
    return {
        episode.agent.turns[-1].info["number"]
        for step in store.steps(kind)
        for episode in store.read(step, kind)
    }


def test_training_plays_all_rows_but_those_that_evaluations_are_on(run):
    held_out = {row["number"] for row in split_rows(ROWS, 0.05).held_out}
    assert len(run.metrics_history) == 4  # two epochs of 48 rows
    assert played(run, "train") == set(range(64)) - held_out
    assert len(held_out) == 16
    assert played(run, "eval-greedy") <= held_out


def command(*words):
    """What a command prints; of one with --json, what that says."""
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout) if "--json" in words else ran.stdout


def words_of(file):
    """The text of a picture or of a page, without its tags."""
    return re.sub(r"<[^>]*>", " ", file.read_text())


def test_every_door_says_the_same_headline(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = RunFolder(run.run_folder)
    expected = headline(metrics_of(run.run_folder), "16 held-out rows")
    assert folder.evaluated_on == "16 held-out rows"
    assert expected.over == "3 greedy episodes on 16 held-out rows"
    assert expected.step == 4
    best = CheckpointStore(folder.checkpoints).best
    name, picture, page = str(run.run_folder), tmp_path / "curve.svg", tmp_path / "run.html"
    assert command("doctor", name, "--json")["headline"]["text"] == str(expected)
    command("export", name, str(page))
    shown = open_library(run.run_folder).runs[0].summary()
    assert shown["headline"]["text"] == str(expected)
    assert shown["best_checkpoint"]["text"] == str(best)
    said = {
        "doctor": command("doctor", name),
        "train": _closing(run.config, run.metrics_history, name),
        "model card": model_card(run.run_folder, 4, run.config, "mine", 1),
        "plot": command("plot", name, "-o", str(picture)),
        "eval": command("eval", name, *["--model", "tiny", "--agent", "random", "--episodes", "1"]),
        "picture": words_of(picture),
        "exported page": words_of(page),
    }
    for door, text in said.items():
        assert str(expected) in " ".join(text.split()), door
    for door in ("doctor", "train"):
        assert f"checkpoint of {best}" in " ".join(said[door].split()), door
    assert f"best checkpoint step 4 {best.about}" in " ".join(said["exported page"].split())


def test_the_latest_of_equals_is_the_best(run):
    best = CheckpointStore(RunFolder(run.run_folder).checkpoints).best
    values = [
        (m["eval/greedy/reward"], m["step"]) for m in run.metrics_history if "time/evaluate" in m
    ]
    assert (best.value, best.step) == max(values)
    assert best.num_episodes == 3
    assert best.low <= best.value <= best.high


ONE_EPOCH = (
    *training("warm_start=null batch_size=2 num_epochs=1"),
    "inference.max_tokens=1",
)
WORDS = [{"word": word, "size": {"x": 1, "y": 2}} for word in "ab"]
SAME = [{"size": {"y": 2, "x": 1}, "word": "b"}, {"word": "c"}, {"word": "d"}]


def test_a_run_says_it_when_it_begins_and_so_does_the_doctor(tmp_path):
    file = tmp_path / "other name.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in SAME))
    listener = Listener()
    options = {"dataset": WORDS, "eval_dataset": str(file), "reporter": listener}
    with small_trainer(tmp_path / "runs", Echo, *ONE_EPOCH, **options) as trainer:
        trainer.fit()
    text = (
        "1 of 3 rows of eval_dataset are also in the training dataset: evaluations on them look "
        "better than they would on new rows."
    )
    (warning,) = [said for said in listener.said if said.startswith("warning: ")]
    assert warning.startswith(f"warning: {text} Remove these rows from one of the two datasets")
    shown = CliRunner().invoke(app, ["doctor", str(trainer.run_folder), "--json"])
    found = {finding["code"]: finding for finding in json.loads(shown.stdout)["now"]}
    assert found["shared-rows"]["text"] == text
    assert "training.eval_fraction" in found["shared-rows"]["fix"]
