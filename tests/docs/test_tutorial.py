"""The tutorial as `make newcomer` runs it: its files, its commands, and what it says they give."""

import subprocess
from pathlib import Path

import pytest

from docs.tutorial import BLOCK, make_script
from turnwise import check_env, expert_player, play_episode, random_player

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


def files():
    return {title: body for _, title, body in BLOCK.findall(PAGE.read_text()) if title}


def test_the_script_has_every_command_and_is_a_script(tmp_path):
    page = PAGE.read_text()
    script = make_script(page, str(tmp_path / "stages"))
    commands = [
        line for kind, _, body in BLOCK.findall(page) if kind == "sh" for line in body.split("\n")
    ]
    written = script.splitlines()
    assert [line for line in written if line in commands and line] == [c for c in commands if c]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_its_environment_is_fit_and_its_players_earn_what_the_page_says():
    names = {"__name__": "greenhouse"}
    exec(files()["greenhouse.py"], names)
    greenhouse = names["Greenhouse"]
    report = check_env(greenhouse)
    assert report.ok, str(report)
    assert play_episode(greenhouse(), expert_player, 1).total_reward == pytest.approx(1.0)
    chance = [play_episode(greenhouse(), random_player(s), s).total_reward for s in range(200)]
    assert 0.1 < sum(chance) / 200 < 0.3
