"""`turnwise play`: what a person sees and types, scripted players, and polite failures."""

import re
import signal

import pytest

from cli.terminal import OnTerminal


def test_a_person_plays_to_the_end(turnwise, coins):
    ran = turnwise("play", coins, "--param", "num_asked=1", "--seed", "7", typed="take\nstop\n")
    assert ran.code == 0
    assert ran.err == ""
    assert ran.out == (
        "coins.py:Coins  seed 7, at most 4 turns\n"
        "system prompt: Say take or stop. [bold]Be quick.[/bold]\n"
        "\nTake 1.\n\n"
        "(? for help, quit to exit)\n"
        "1> take\n"
        "You have 1.\n"
        "  reward -0.1\n"
        "2> stop\n"
        "The end.\n"
        "  reward +1\n"
        "\nSolved  2 turns, total reward 0.9, done\n"
    )


def test_state_hint_and_words_that_are_not_commands(turnwise, coins):
    typed = "?\n\nhint\n=hint\n=quit\n"
    ran = turnwise("play", coins, "-p", "num_asked=2", typed=typed)
    assert "1> ?\ntaken 0 of 2\n" in ran.out
    assert "hint the expert's action" in ran.out
    assert "1> hint\ntake\n" in ran.out
    assert ran.out.count("What?\n  reward 0  (invalid action)") == 2
    assert "Stopped after 2 turns, total reward 0." in ran.out


@pytest.mark.parametrize("typed", ["take\nquit\n", "take\n"])
def test_quit_and_the_end_of_input_leave_politely(turnwise, coins, typed):
    ran = turnwise("play", coins, "-p", "num_asked=2", typed=typed)
    assert ran.code == 0
    assert ran.out.endswith("Stopped after 1 turn, total reward -0.1.\n")


def test_endings_are_told_apart(turnwise, coins):
    assert "Not solved  1 turn," in turnwise("play", coins, typed="stop\n").out
    cut = turnwise("play", coins, "--max-steps", "2", typed="take\ntake\n")
    assert "Finished  2 turns, total reward -0.2, truncated by turns" in cut.out


def test_many_scripted_episodes_are_a_line_each_and_a_summary(turnwise, coins):
    expert = turnwise("play", coins, "--player", "expert", "--episodes", "3", "--seed", "5").out
    assert re.findall(r"^seed (\d+) +Solved", expert, re.M) == ["5", "6", "7"]
    assert "3 episodes by expert: success 100%, mean reward 0.8" in expert
    chance = turnwise("play", coins, "--player", "random", "--episodes", "40", "--seed", "5").out
    rate = re.search(r"40 episodes by random: success (\d+)%", chance)
    assert rate is not None
    assert 0 < int(rate[1]) < 100
    again = turnwise("play", coins, "--player", "random", "--episodes", "40", "--seed", "5").out
    assert again == chance


def test_a_player_that_the_environment_does_not_offer(turnwise, coins):
    ran = turnwise("play", "coins.py:Mute", "--player", "expert")
    assert (ran.code, ran.out.count("\n1>")) == (2, 0)
    assert ran.err.startswith("error: Mute has no expert.")


def test_a_file_may_import_from_beside_itself(turnwise, coins, tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "neighbour.py").write_text("WORD = 'hello'")
    (tmp_path / "inner" / "own.py").write_text(
        "from neighbour import WORD\nfrom turnwise.env import BaseEnvironment\n"
        "class Own(BaseEnvironment):\n"
        "    def reset(self): return WORD\n"
        "    def step(self, action): return 'bye', 1.0, True, {}\n"
        "    def get_state_description(self): return WORD\n"
    )
    assert "hello" in turnwise("play", "inner/own.py:Own", typed="x\n").out
    assert "hello" in turnwise("play", "inner.own:Own", typed="x\n").out


def test_an_async_environment_that_keeps_its_loop(turnwise, tmp_path):
    (tmp_path / "waits.py").write_text(
        "import asyncio\nfrom turnwise.env import BaseEnvironment\n"
        "class Waits(BaseEnvironment):\n"
        "    async def reset(self):\n"
        "        self.loop = asyncio.get_running_loop()\n"
        "        return 'hello'\n"
        "    async def step(self, action):\n"
        "        assert asyncio.get_running_loop() is self.loop\n"
        "        return 'bye', 1.0, True, {}\n"
        "    def get_state_description(self): return ''\n"
    )
    assert "Finished  1 turn" in turnwise("play", f"{tmp_path}/waits.py:Waits", typed="x\n").out


def test_in_a_real_terminal(coins):
    terminal = OnTerminal("play", coins, "-p", "num_asked=1")
    opening = terminal.read_until("1> ")
    assert "system prompt: " in re.sub(r"\x1b\[[\d;]*m", "", opening)
    assert "[bold]Be quick.[/bold]" in opening  # an environment's brackets are no markup
    terminal.type(b"take\n")
    terminal.read_until("2> ")
    terminal.type(b"stop\n")
    assert "\x1b[1;32mSolved" in terminal.read_until("done")
    assert terminal.process.wait(60) == 0


def test_ctrl_c_leaves_politely(coins):
    terminal = OnTerminal("play", coins)
    terminal.read_until("1> ")
    terminal.insist(
        lambda: terminal.process.send_signal(signal.SIGINT),
        lambda: terminal.has("Stopped after 0 turns, total reward 0."),
        is_ending=True,
    )
    assert terminal.process.wait(60) == 0
