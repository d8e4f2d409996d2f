"""How a run is shown: the picture at any size, a live terminal, plain lines, JSON."""

import io
import math
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from cli.terminal import Terminal
from turnwise.progress import make_reporter
from turnwise.progress.lines import JsonReporter, LineReporter, RunState
from turnwise.progress.live import LiveReporter, RunView
from turnwise.trainer.reporter import RunInfo


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def info(num_steps: int = 200, **others) -> RunInfo:
    return RunInfo(Path("runs/mine"), "guess-number", "tiny", num_steps, **others)


def metrics(step: int, **others: float) -> dict[str, float]:
    """As a learner that gets better would have them."""
    rate = 1 - math.exp(-step / 40)
    own = {"step": step, "reward": rate, "success": rate, "entropy": 1.2, "kl": 0.004}
    own["num_steps"] = 4  # of the optimiser: with one, KL says nothing and is not shown
    return {**own, "time/episodes_per_second": 21.4, "time/step": 1.0, **others}


def told(reporter, clock: Clock, num_steps: int, **others: float):
    """A reporter that has been told of so many steps, a second each."""
    for step in range(1, num_steps + 1):
        clock.now += 1.0
        reporter.step(metrics(step, **others))
    return reporter


def pictured(state: RunState, width: int = 80, height: int = 24, **options) -> str:
    out = io.StringIO()
    terminal = {"force_terminal": True, "color_system": None, **options}
    Console(file=out, width=width, height=height, **terminal).print(RunView(state))
    return out.getvalue()


def running(num_steps: int = 80, **others: float) -> RunState:
    clock = Clock()
    state = RunState(clock)
    state.begin(info())
    return told(state, clock, num_steps, **others)


def test_the_picture_says_what_matters():
    state = running(**{"eval/greedy/success": 0.9, "eval/sampled/success": 0.8})
    state.progress("episodes", 37, 64)
    picture = pictured(state)
    for text in (
        "guess-number · tiny",
        "runs/mine",
        "step 80/200",
        "1:20 elapsed, 2:00 left",
        "episodes 37/64",
        "success on held-out seeds 0.90 greedy, 0.80 sampled",
    ):
        assert text in picture
    names, values = re.search(r"^(reward .*episodes/s)\s*\n(.*)$", picture, re.M).groups()
    assert names.split() == ["reward", "success", "entropy", "KL", "episodes/s"]
    assert values.split() == ["0.86", "0.86", "1.20", "0.004", "21.4"]


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (60, 20), (40, 15), (25, 10)])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 500])
def test_the_picture_keeps_within_any_terminal(size, num_steps):
    state = running(num_steps)
    state.progress("episodes", 3, 64)
    picture = pictured(state, *size)
    assert all(len(line) < size[0] for line in picture.splitlines())
    assert picture.count("\n") < size[1]


@pytest.fixture
def terminal():
    return Terminal()


def reporter_on(terminal):
    console = Console(
        file=terminal, force_terminal=True, width=80, height=24, color_system="standard"
    )
    return LiveReporter(console)


@pytest.fixture
def live(terminal):
    with reporter_on(terminal) as reporter:
        yield reporter


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_live_picture_follows_and_its_last_one_stays(terminal, live):
    live.console.print("$ turnwise train")
    wait_for(lambda: "setting up" in terminal.screen)
    live.begin(info(40))
    wait_for(lambda: "setting up" not in terminal.screen)
    for step in range(1, 41):
        live.step(metrics(step))
        live.progress("episodes", step, 64)
        if step % 20 == 0:
            wait_for(lambda step=step: f"step {step}/40" in terminal.screen)
            assert terminal.screen.count("guess-number · tiny") == 1
    live.say("the last word")
    live.end("finished")
    assert terminal.screen.count("step 40/40") == 1
    assert "\nfinished" in terminal.screen
    assert "the last word" in terminal.screen
    assert terminal.raw.endswith("\x1b[?25h")  # the cursor is back
    assert terminal.num_breaks == 0
    assert "".join(terminal.scrolled).count("guess-number") == 0


def test_a_run_that_fails_leaves_the_terminal_as_it_was(terminal):
    live = reporter_on(terminal)
    live.begin(info(40))
    with pytest.raises(ZeroDivisionError), live:
        live.step({"step": 1 / 0})
    assert terminal.raw.endswith("\x1b[?25h")


def test_plain_lines_can_be_searched():
    out, clock = io.StringIO(), Clock()
    with LineReporter(out, clock) as reporter:
        reporter.begin(info(4))
        clock.now += 2
        told(reporter, clock, 1, reward=0.53, success=0.41)
        reporter.say("checkpoint saved")
        clock.now += 19
        reporter.progress("episodes", 3, 64)
        clock.now += 1
        reporter.progress("episodes", 37, 64)
        reporter.step(metrics(2, **{"eval/greedy/success": 0.5}))
        reporter.end("finished")
    assert out.getvalue().splitlines() == [
        "run folder runs/mine",
        "training tiny on guess-number, 4 steps",
        "step 1/4  reward 0.53  success 0.41  21.4 episodes/s  eta 0:03  entropy 1.20  kl 0.004",
        "checkpoint saved",
        "  episodes 37/64",
        "step 2/4  reward 0.049  success 0.049  eval/greedy/success 0.50  21.4 episodes/s"
        "  eta 0:02  entropy 1.20  kl 0.004",
        "finished after 0:23",
    ]


def test_a_pipe_gets_lines_and_a_terminal_the_picture(monkeypatch):
    assert type(make_reporter()) is LineReporter
    assert isinstance(make_reporter(as_json=True), JsonReporter)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as CI and notebooks do for a pipe
    assert type(make_reporter()) is LineReporter
    monkeypatch.setattr("sys.stdout", Terminal())
    assert isinstance(make_reporter(), LiveReporter)
    assert type(make_reporter(plain=True)) is LineReporter
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_reporter()) is LineReporter
