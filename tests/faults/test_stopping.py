"""Ctrl-C, SIGTERM and kill -9 on a real process that trains."""

import asyncio
import contextlib
import re
import signal
import threading
import time

import pytest

from trainer.runs import assert_same_run, newest_files
from trainer.training_child import Child, finish
from turnwise.deadlines import calls
from turnwise.runs.run_folder import RunFolder
from turnwise.trainer.stopping import StopRequest, run_unless_stopped

PROMISED_SECONDS = 300
"""Half of what user code blocks for: no busy machine takes so long to stop."""
KEYBOARD_INTERRUPT = 1
"""How a child that `multiprocessing` made ends by one; `turnwise train` ends with 130."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(folder)
    return folder / "killed"


class TestSignals:
    @pytest.mark.parametrize(
        ("number", "moment", "code"),
        [
            (signal.SIGTERM, "warm start 1", 143),
            (signal.SIGTERM, "episodes 2", 143),
            (signal.SIGINT, "evaluation 1", KEYBOARD_INTERRUPT),
        ],
    )
    def test_it_saves_and_leaves(self, tmp_path, undisturbed, number, moment, code):
        child = Child(tmp_path, wait_at=moment)
        child.hear(moment)
        child.send(number)
        assert child.end() == code, "\n".join(child.lines)
        assert "stopping: saving the run first (Ctrl-C again leaves at once)" in child.lines
        assert "interrupted" in child.lines
        assert RunFolder(tmp_path / "killed").status["status"] == "interrupted"
        again = finish(tmp_path)
        assert any(line.startswith("resuming from step") for line in again)
        assert_same_run(undisturbed, tmp_path / "killed")

    @pytest.mark.parametrize("place", ["warm start", "step 2"])
    def test_while_an_environment_blocks(self, tmp_path, undisturbed, place):
        child = Child(tmp_path, slow_at=place)
        child.hear("blocked")
        child.send(signal.SIGTERM)
        started = time.monotonic()
        assert child.end() == 143, "\n".join(child.lines)
        assert time.monotonic() - started < PROMISED_SECONDS
        assert newest_files(tmp_path / "killed")[0] == (0 if place == "warm start" else 1)
        assert RunFolder(tmp_path / "killed").status["status"] == "interrupted"

    @pytest.mark.parametrize(
        ("number", "world"),
        [(signal.SIGTERM, "quick"), (signal.SIGINT, "async"), (signal.SIGHUP, "stubborn")],
    )
    def test_while_user_code_blocks_the_loop(self, tmp_path, number, world):
        """It is left behind; the run is saved, and goes on from there."""
        child = Child(tmp_path, slow_at="step 2", world=world)
        child.hear("blocked")
        child.send(number)
        started = time.monotonic()
        code = child.end()
        assert time.monotonic() - started < PROMISED_SECONDS, "\n".join(child.lines)
        assert code == (1 if number == signal.SIGINT else 128 + number), "\n".join(child.lines)
        assert "interrupted" in child.lines
        assert newest_files(tmp_path / "killed")[0] == 1
        assert RunFolder(tmp_path / "killed").status["status"] == "interrupted"

    @pytest.mark.parametrize(
        ("number", "world"), [(signal.SIGINT, "gil"), (signal.SIGTERM, "gil in a thread")]
    )
    def test_while_user_code_holds_the_gil(self, tmp_path, undisturbed, number, world):
        """No signal is handled then, and nothing can be saved: another process ends this one."""
        child = Child(tmp_path, slow_at="step 2", world=world)
        child.hear("blocked")
        child.send(number)
        started = time.monotonic()
        assert child.end() == 128 + signal.SIGKILL, "\n".join(child.lines)
        assert time.monotonic() - started < PROMISED_SECONDS
        assert f"{signal.Signals(number).name} could not be handled" in child.lines[-1]
        log = RunFolder(tmp_path / "killed").log_file.read_text()
        assert re.search(r'training_child.py", line \d+ in step', log)
        finish(tmp_path, world=world, slow_at="nowhere", resume="always")
        assert_same_run(undisturbed, tmp_path / "killed")

    def test_a_second_one_gives_up_the_save(self, tmp_path, undisturbed):
        child = Child(tmp_path, slow_save=True, wait_at="evaluation 1")
        child.hear("evaluation 1")
        child.send(signal.SIGTERM)
        child.hear("saving")
        child.send(signal.SIGTERM)
        assert child.end() == 143, "\n".join(child.lines)
        assert newest_files(tmp_path / "killed")[0] == 0
        assert RunFolder(tmp_path / "killed").status["status"] == "interrupted"
        finish(tmp_path)  # from the checkpoint before, which is whole
        assert_same_run(undisturbed, tmp_path / "killed")

    def test_a_second_one_leaves_at_once(self, tmp_path):
        child = Child(tmp_path, slow_at="step 1")
        child.hear("blocked")
        child.send(signal.SIGINT)
        child.hear("stopping")
        child.send(signal.SIGINT)
        assert child.end() == KEYBOARD_INTERRUPT
        # Not always the last line: other episodes may block, and say so, while the process ends.
        assert "KeyboardInterrupt" in child.lines, "\n".join(child.lines)
        assert RunFolder(tmp_path / "killed").status["status"] == "interrupted"


class TestHangs:
    """No signal comes: `inference.stall_timeout` ends the run, and it can be resumed."""

    def test_code_that_holds_the_gil(self, tmp_path, undisturbed):
        child = Child(
            tmp_path, slow_at="step 2", world="gil", settings=["inference.stall_timeout=6"]
        )
        assert child.end() == 128 + signal.SIGKILL, "\n".join(child.lines)
        assert "a call holds Python's interpreter lock" in child.lines[-1]
        log = RunFolder(tmp_path / "killed").log_file.read_text()
        assert re.search(r'training_child.py", line \d+ in step', log)
        finish(tmp_path, world="gil", slow_at="nowhere", resume="always")
        assert_same_run(undisturbed, tmp_path / "killed")

    @pytest.mark.parametrize("world", ["quick", "async"])
    def test_code_that_blocks_the_loop(self, tmp_path, undisturbed, world):
        child = Child(
            tmp_path, slow_at="step 2", world=world, settings=["inference.stall_timeout=6"]
        )
        assert child.end() == 1, "\n".join(child.lines)
        folder = RunFolder(tmp_path / "killed")
        assert folder.status["status"].startswith("stopped: ")
        assert "code that should be quick or awaited: step (" in folder.status["status"]
        assert newest_files(tmp_path / "killed")[0] == 1  # it was saved
        finish(tmp_path, world=world, slow_at="nowhere", resume="always")
        assert_same_run(undisturbed, tmp_path / "killed")

    def test_code_that_blocks_the_loop_of_an_asynchronous_run(self, tmp_path):
        settings = ["inference.stall_timeout=6", "training.max_staleness=1"]
        child = Child(tmp_path, slow_at="step 3", world="quick", settings=settings)
        assert child.end() == 1, "\n".join(child.lines)
        status = RunFolder(tmp_path / "killed").status["status"]
        assert "code that should be quick or awaited: step (" in status
        finish(tmp_path, world="quick", slow_at="nowhere", resume="always", settings=settings)


class TestRequest:
    def test_what_follows_runs_in_the_same_thread_and_loop(self):
        """An HTTP client or a database connection of the user's belongs to one loop."""

        async def place():
            return threading.get_ident(), id(asyncio.get_running_loop())

        async def leave_a_task_that_ignores_its_end():
            async def ignore():
                while True:
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(60)

            task = asyncio.create_task(ignore())
            await asyncio.sleep(0)
            return task

        stop = StopRequest(lambda text: None)
        with stop.listening():
            first = run_unless_stopped(place(), stop)
            assert run_unless_stopped(place(), stop) == first
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(calls, "GRACE_SECONDS", 0.05)
                run_unless_stopped(leave_a_task_that_ignores_its_end(), stop)
                assert run_unless_stopped(place(), stop)[0] == first[0]

    def test_the_handlers_before_come_back(self):
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        said = []
        stop = StopRequest(said.append)
        with stop.listening():
            stop.can_save = True
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_requested
            with pytest.raises(SystemExit):
                signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            signal.signal(signal.SIGTERM, stop._on_signal)
            with pytest.raises(SystemExit):
                signal.raise_signal(signal.SIGTERM)
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        assert len(said) == 1
        with pytest.raises(SystemExit) as left:
            stop.raise_signal()
        assert left.value.code == 143
