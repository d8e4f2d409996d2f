"""The Python examples in the README and the docs, from top to bottom; and the tutorial."""

import re
import subprocess
from pathlib import Path

import pytest

from docs.tutorial import BLOCK, make_script
from turnwise import Trainer, check_env, expert_player, play_episode, random_player

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.compile(r'^```python(?: title="([^"]+)")?\n(.*?)^```', re.M | re.S)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture
def short_runs(monkeypatch):
    """Training as on the page, but for one small step: the page's own would take minutes."""
    fit = Trainer.fit

    def fit_shortly(self, num_epochs=None, num_iters_per_epoch=None):
        training = self.config.training
        training.batch_size = min(training.batch_size, 4)
        training.warm_start_steps = 1
        training.eval_episodes = min(training.eval_episodes, 2)
        return fit(self, num_epochs=1, num_iters_per_epoch=1)

    monkeypatch.setattr(Trainer, "fit", fit_shortly)


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    if page.name == "verl.md":
        pytest.importorskip("verl", reason="runs beside VERL")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    for title, example in EXAMPLE.findall(page.read_text()):
        if title:  # a file that the page tells to save
            Path(title).write_text(example)
        exec(compile(example, title or page.name, "exec"), names)


TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


def tutorial_files():
    return {title: body for _, title, body in BLOCK.findall(TUTORIAL.read_text()) if title}


def test_the_script_has_every_command_and_is_a_script(tmp_path):
    page = TUTORIAL.read_text()
    script = make_script(page, str(tmp_path / "stages"))
    commands = [
        line for kind, _, body in BLOCK.findall(page) if kind == "sh" for line in body.split("\n")
    ]
    written = script.splitlines()
    assert [line for line in written if line in commands and line] == [c for c in commands if c]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_its_environment_is_fit_and_its_players_earn_what_the_page_says():
    names = {"__name__": "greenhouse"}
    exec(tutorial_files()["greenhouse.py"], names)
    greenhouse = names["Greenhouse"]
    report = check_env(greenhouse)
    assert report.ok, str(report)
    assert play_episode(greenhouse(), expert_player, 1).total_reward == pytest.approx(1.0)
    chance = [play_episode(greenhouse(), random_player(s), s).total_reward for s in range(200)]
    assert 0.1 < sum(chance) / 200 < 0.3
