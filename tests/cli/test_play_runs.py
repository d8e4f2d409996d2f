"""`turnwise play` with runs: a person or a scripted player in a run's environment, and watching a
trained agent with the run's own tools, dataset, system prompt and reward."""

import json
import re
import signal
from pathlib import Path

import pytest

from cli.terminal import OnTerminal

AGENTS = """
def act(observation):
    if observation.startswith("Say"):
        return '<think>The [bold]word[/bold] is known.</think>{"name": "say_word", "arguments": ' \\
            '{"word": "lily"}}'
    return "done"


def fails(observation):
    return {}["nothing"]
"""


@pytest.fixture
def runs(runs):
    Path("play_agents.py").write_text(AGENTS)
    return runs


def test_a_person_plays_a_runs_environment_with_its_tools(turnwise, runs):
    typed = "/say_word word=oak\ndone\n"
    ran = turnwise("play", str(runs.tools), "--seed", "1", typed=typed)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        f"greenhouse.py:Greenhouse of {runs.tools}  seed 1, row 2 of the dataset, "
        "at most 4 turns\n"
        "system prompt: You are a gardener.\n"
        "\nSay the tree.\n\n"
        "tools:\n"
        "  /look_up kind=...  Find the word of a kind.\n"
        "  /say_word word=...  Say the word.\n"
        "(? for help, quit to exit)\n"
        "1> /say_word word=oak\n"
        "  say_word(word='oak') -> You said oak.\n"
        "  reward 0\n"
        "2> done\n"
        "  reward +1\n"
        "\nSolved  2 turns, total reward 1, score 2 by the reward function, done\n"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/say_wrd word=oak", "there is no tool 'say_wrd'. Did you mean 'say_word'?"),
        ("/say_word oak", "got /say_word oak, expected /say_word word=..."),
        ("/say_word word='oak", "expected /say_word word=..."),
        ("/", "there is no tool ''"),
    ],
)
def test_a_mistyped_tool_costs_no_turn(turnwise, runs, line, message):
    typed = f"{line}\n/say_word word=oak\ndone\n"
    ran = turnwise("play", str(runs.tools), "--seed", "1", typed=typed)
    assert message in ran.out
    assert f"As an action: ={line}\n" in ran.out
    assert "Solved  2 turns, total reward 1" in ran.out


def test_an_environments_own_tools_need_no_run(turnwise, runs):
    Path("own.py").write_text(
        "from greenhouse import Greenhouse\n\n\nclass Own(Greenhouse):\n"
        "    task = {'kind': 'flower', 'word': 'rose'}\n"
    )
    out = turnwise("play", "own.py:Own", typed="/say_word word=rose\ndone\n").out
    assert "  say_word(word='rose') -> You said rose.\n" in out
    assert "Solved  2 turns, total reward 1, done" in out


@pytest.mark.parametrize("kind", ["script", "tools", "gym"])
def test_the_expert_plays_every_kind_of_run(turnwise, runs, kind):
    run = str(getattr(runs, kind))
    ran = turnwise("play", run, "--player", "expert", "--seed", "2", "--json")
    assert ran.code == 0, ran.err
    episode = json.loads(ran.out)
    assert episode["turns"]
    if kind == "tools":
        assert episode["success"] is True
        assert (episode["reward"], episode["score"], episode["row"]) == (1.0, 2.0, 0)
        (call,) = episode["turns"][0]["calls"]
        assert call == {
            "name": "say_word",
            "arguments": {"word": "lily"},
            "success": True,
            "result": "You said lily.",
        }
    out = turnwise("play", run, "--player", "expert", "--episodes", "2", "--seed", "2").out
    assert "2 episodes by expert: " in out


@pytest.mark.parametrize("kind", ["script", "tools", "gym"])
def test_a_trained_agent_is_watched_with_the_parts_of_its_run(turnwise, runs, kind):
    run = getattr(runs, kind)
    ran = turnwise("play", "--player", str(run), "--seed", "1")
    assert (ran.code, ran.err) == (0, "")
    if kind == "script":
        assert "Count your coins.\n\nSay take or stop. [bold]Be quick.[/bold]" in ran.out
    if kind == "tools":
        assert "row 2 of the dataset, at most 4 turns" in ran.out
        assert "- say_word(word: string): Say the word.\n" in ran.out
        assert "by the reward function" in ran.out
    assert re.search(r"^1> ", ran.out, re.M)
    checkpoint = sorted(run.glob("checkpoints/step-*"))[-1]
    again = turnwise("play", str(run), "--player", str(checkpoint), "--seed", "1")
    assert again.out == ran.out


def test_a_model_plays_a_runs_environment_and_a_run_plays_another(turnwise, runs):
    ran = turnwise("play", str(runs.tools), "--player", "tiny", "--seed", "1", "--json")
    assert json.loads(ran.out)["row"] == 1
    ran = turnwise("play", "coins.py:Coins", "--player", str(runs.gym), "--seed", "1", "--json")
    episode = json.loads(ran.out)
    assert episode["turns"][0]["info"] == {"invalid_action": True}
    assert "row" not in episode


def test_an_agents_thoughts_calls_and_failures_are_shown(turnwise, runs):
    agent = "play_agents.py:act"
    out = turnwise("play", str(runs.tools), "--player", agent, "--seed", "0").out
    assert "1> The [bold]word[/bold] is known.\n" in out
    assert '   {"name": "say_word", "arguments": {"word": "lily"}}\n' in out
    assert "  say_word(word='lily') -> You said lily.\n  reward 0\n2> done\n" in out
    assert "Solved  2 turns, total reward 1, score 2 by the reward function, done" in out
    ran = turnwise("play", str(runs.tools), "--player", "play_agents.py:fails")
    assert ran.code == 1
    assert "failed in turn 1: KeyError: 'nothing'" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no environment is named"),
        (["--player", "expert"], "no environment is named"),
        (["--player", "runs"], "runs is not a run, it contains runs"),
        (["runs/tools", "--json"], "--json is not for a human"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_what_cannot_be_played_is_said(turnwise, arguments, message):
    ran = turnwise("play", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_ctrl_c_leaves_a_watched_agent_cleanly(runs):
    terminal = OnTerminal("play", "--player", "runs/script", "--delay", "60")
    terminal.read_until("Take")
    terminal.process.send_signal(signal.SIGINT)
    shown = terminal.read_until("Stopped after 0 turns")
    assert "Traceback" not in shown
    assert terminal.process.wait(60) == 0
