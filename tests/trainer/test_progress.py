"""`fit` shows its progress by itself, where the script runs, and everything once."""

import contextlib
import logging
import multiprocessing
import re
import sys

import pytest

from cli.terminal import Terminal
from trainer.worlds import QUICK, Echo, small_trainer
from turnwise.errors import ConfigError
from turnwise.progress import is_worker
from turnwise.runs.run_folder import RunFolder

ONE_EPOCH = (*QUICK, "training.num_epochs=1", "training.steps_per_epoch=2")


class Talking(Echo):
    """Prints, as people do who look for a mistake, and fails now and then."""

    def reset(self):
        self.number = self.rng.randrange(1000)
        return super().reset()

    def step(self, action):
        print(f"the environment prints {self.number}")
        logging.getLogger("turnwise").warning("a warning of turnwise %s", self.number)
        logging.getLogger("mine").warning("a warning of the script %s", self.number)
        return super().step(action)


def fit(folder, environment=Echo, *overrides, **options):
    with small_trainer(folder, environment, *ONE_EPOCH, *overrides, **options) as trainer:
        trainer.fit()
    return trainer


def masked(text):
    """Numbers that the machine decides, and the folder, made equal."""
    text = re.sub(r"\d+:\d\d\b", "TIME", re.sub(r"\S+ episodes/s", "N episodes/s", text))
    return re.sub(r"(run folder|turnwise view|turnwise eval) [^,\n]*", r"\1 ...", text)


@contextlib.contextmanager
def configured_logging():
    """The logging of a script: INFO to the standard error, as `basicConfig` has it."""
    handler = logging.StreamHandler(sys.stderr)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel("INFO")
    try:
        yield handler
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def test_a_pipe_gets_the_folder_first_and_a_line_per_step(tmp_path, capsys):
    with configured_logging():
        trainer = fit(tmp_path, Echo, "training.batch_size=2")  # too few to speak of their reward
    out, err = capsys.readouterr()
    assert out.startswith(f"run folder {trainer.run_folder}\n")
    first, second = trainer.metrics_history
    steps = [
        f"step {number}/2  reward {reward}  N episodes/s  eta TIME  "
        f"entropy {m['entropy']:.2f}  grad_norm "
        for number, m in enumerate((first, second), 1)
        for reward in [f"{m['reward']:.2f}" if m["reward"] else "0"]
    ]
    lines = masked(re.sub(r"success [\d.]+  |(?<=grad_norm )\S+.*", "", out)).splitlines()
    assert lines == [
        "run folder ...",
        "training tiny on Echo, 2 steps",
        *steps,
        "finished after TIME",
        "Next: turnwise view ..., turnwise eval ...",
    ]
    assert err == ""  # the user's INFO log on the same screen does not repeat it
    assert RunFolder(trainer.run_folder).log_file.read_text().count("INFO step ") == 2


def test_none_is_silent_and_the_log_is_kept_all_the_same(tmp_path, capfd):
    trainer = fit(tmp_path, reporter=None)
    assert capfd.readouterr() == ("", "")
    assert RunFolder(trainer.run_folder).log_file.read_text().count("INFO step ") == 2


@pytest.fixture
def terminal(monkeypatch):
    """A function: from then on, what the process writes to either stream is on this screen."""

    def take():  # not before the test, since pytest sets the streams after its fixtures
        screen = Terminal(width=100, height=30)
        for name, value in {"COLUMNS": "100", "LINES": "30", "TERM": "xterm"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    return take


def test_a_terminal_gets_the_live_display_and_all_else_above_it(tmp_path, terminal):
    screen = terminal()
    with configured_logging() as handler:
        fit(tmp_path, Talking)
        assert handler.stream is screen
    everything = "\n".join([*screen.scrolled, screen.screen])
    assert everything.count("Talking · tiny") == 1  # one whole picture, not torn by what is printed
    picture = everything.index("Talking · tiny")
    for start in ("the environment prints", "a warning of turnwise", "a warning of the script"):
        numbers = re.findall(rf"^{start} (\d+)$", everything, re.M)
        assert len(numbers) == 8, start  # each once
        assert everything.rindex(start) < picture
    assert "step 2/2" in everything[picture:]
    assert "\nfinished" in everything[picture:]
    assert "\nNext: turnwise view " in everything[picture:]
    assert screen.raw.rindex("\x1b[?25h") > screen.raw.rindex("\x1b[?25l")  # the cursor is back
    assert sys.stdout is sys.stderr is screen


def test_a_worker_process_displays_nothing():
    assert not is_worker()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(is_worker)


def test_a_reporter_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"reporter got .*print.* has no method begin, step"):
        small_trainer(tmp_path, Echo, reporter=print)
