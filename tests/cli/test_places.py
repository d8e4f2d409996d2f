"""A run is found, resumed and played from any folder, also when its project was moved."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from cli.three_runs import GREENHOUSE
from turnwise import user_code
from turnwise.cli import main
from turnwise.models import load_model

SETTINGS = """
environment: {name: envs/green house.py:Greenhouse}
reward: wörter.points:double
tools: [{tool: "envs/green house.py:look_up"}]
parser: json
dataset: data/rows.jsonl
model: {local_path: model}
training: {num_epochs: 1, batch_size: 2, eval_episodes: 0, warm_start: data/shown.jsonl,
  warm_start_steps: 1}
inference: {max_tokens: 4, max_turns: 4}
"""
ROWS = [{"kind": "flower", "word": "lily"}, {"kind": "tree", "word": "oak"}]
TALK = {"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Ho."}]}
PLAYED = ("run.json", "config.yaml")


def write_project(folder: Path) -> None:
    for name in ("envs", "data", "wörter"):
        (folder / name).mkdir(parents=True)
    (folder / "envs" / "green house.py").write_text(GREENHOUSE.split("def double")[0])
    (folder / "wörter" / "points.py").write_text(
        "from wörter import factor\n\n\ndef double(trajectory):\n"
        "    return factor.FACTOR * trajectory.total_reward\n"
    )
    (folder / "wörter" / "factor.py").write_text("FACTOR = 2.0\n")
    (folder / "data" / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    (folder / "data" / "shown.jsonl").write_text(json.dumps(TALK))
    (folder / "settings.yaml").write_text(SETTINGS)
    loaded = load_model("tiny", device="cpu")
    loaded.model.save_pretrained(folder / "model")
    loaded.tokenizer.save_pretrained(folder / "model")


def forget_modules() -> None:
    """As in a process of its own: nothing of the user's is imported, and nothing is on the path."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "wörter" or name.startswith("turnwise_user_green"):
            del sys.modules[name]
    user_code._remembered.clear()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A project with spaces and umlauts in which a run was trained; each test copies it."""
    folder = tmp_path_factory.mktemp("places") / "mein Gärtchen"
    write_project(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as left:
            main(["train", "settings.yaml", "--lines"])
        assert not left.value.code
    return folder.rename(folder.with_name("away"))  # where it was trained, there is nothing now


@pytest.fixture
def project(trained, tmp_path, turnwise, monkeypatch):
    """A copy of the project with its run, and a command that forgets what others imported."""
    folder = tmp_path / "mein Gärtchen"
    shutil.copytree(trained, folder)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = list(sys.path)

    def run(*words: str, at: Path = elsewhere, installed: tuple[Path, ...] = ()):
        forget_modules()
        monkeypatch.setattr(sys, "path", [*path, *map(str, installed)])
        monkeypatch.chdir(at)
        return turnwise(*words)

    yield folder, run
    forget_modules()


def files_of(run: Path) -> tuple[str, dict]:
    return (run / "config.yaml").read_text(), json.loads((run / "run.json").read_text())


def test_a_run_keeps_its_names_when_it_is_resumed_from_elsewhere_and_moved(project, tmp_path):
    folder, turnwise = project
    run = folder / "runs" / "Greenhouse"
    settings, before = files_of(run)
    assert "path: data/rows.jsonl" in settings
    assert "local_path: model" in settings
    assert before["base_directory"]["from_run"] == "../.."
    moved, link = tmp_path / "moved", tmp_path / "link"
    link.symlink_to(moved)
    settings = settings.replace("num_epochs: 1", "num_epochs: 2")  # the one change that is asked
    for at, place in ((tmp_path, folder), (tmp_path, moved), (link, link)):
        if place == moved:
            folder.rename(moved)
        run = place / "runs" / "Greenhouse"
        words = ("train", str(run), "--trust-remote-code", "--lines", "training.num_epochs=2")
        done = turnwise(*words, at=at)
        assert done.code == 0, done.err
        again, now = files_of(run)
        assert again == settings, place
        assert (run / "checkpoints" / "step-00000002" / "config.yaml").read_text() == settings
        assert now["base_directory"] == {"path": str(place.resolve()), "from_run": "../.."}
        really_new = {"base_directory", "provenance", "earlier_starts", "step", "num_steps"}
        assert {k: v for k, v in now.items() if k not in really_new} == {
            k: v for k, v in before.items() if k not in really_new
        }


@pytest.mark.parametrize("place", ["elsewhere", "moved"])
def test_every_command_plays_the_run_from_each_place(project, tmp_path, place):
    folder, turnwise = project
    if place == "moved":
        folder = folder.rename(tmp_path / "moved")
    run = str(folder / "runs" / "Greenhouse")
    trusted = ("--trust-remote-code",)
    done = turnwise("eval", run, "--episodes", "2", "--json", *trusted)
    assert done.code == 0, done.err
    scores = json.loads(done.out)
    assert scores["expert"]["reward"] == 2.0  # doubled by the package's function
    assert scores["environment"] == f"{folder}/envs/green house.py:Greenhouse"
    assert done.err == ""
    assert turnwise("play", run, "--player", "expert", "--json", *trusted).code == 0
    assert turnwise("check-env", run, "--episodes", "1", *trusted).code == 0
    assert turnwise("export", run, str(tmp_path / "out"), *trusted).code == 0


def test_changed_code_is_reported_and_missing_code_is_named_with_its_option(project, tmp_path):
    folder, turnwise = project
    run = str(folder / "runs" / "Greenhouse")
    played = ("eval", run, "--episodes", "1", "--agent", "expert", "--trust-remote-code")
    reward = folder / "wörter" / "points.py"
    reward.write_text(f"# nothing changes\n{reward.read_text()}")
    assert turnwise(*played).err == ""
    reward.write_text(reward.read_text().replace("return ", "return 1.0 + "))
    changed = turnwise(*played)
    assert changed.code == 0
    assert f"the reward changed since the run in {run} began" in changed.err
    resumed = turnwise("train", run, "--trust-remote-code")
    assert (resumed.code, "the reward changed since" in resumed.err) == (2, True)

    # The run alone, on another machine: each thing that is missing is named in turn.
    alone = shutil.copytree(run, tmp_path / "received")
    folder.rename(tmp_path / "gone")
    words = ("eval", str(alone), "--episodes", "1", "--trust-remote-code")
    supplied: tuple[str, ...] = ()
    gone = tmp_path / "gone"
    for missing, option, value in (
        ("envs/green house.py", "--env", "envs/green house.py:Greenhouse"),
        ("model", "--model", "model"),
    ):
        done = turnwise(*words, *supplied)
        assert (done.code, done.out) == (2, "")
        assert missing in done.err
        assert option in done.err, done.err
        supplied += (option, str(gone / value))
    assert turnwise(*words, *supplied, "--dataset", str(gone / "data/rows.jsonl")).code == 0
