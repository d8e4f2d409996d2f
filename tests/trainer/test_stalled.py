"""An engine that stops answering ends a run once, saved, with the reason; it can be resumed."""

import asyncio
from types import SimpleNamespace

import pytest

from trainer.worlds import Memory, small_trainer
from turnwise.episode import watchdog
from turnwise.errors import EngineStalled
from turnwise.runs.run_folder import RunFolder

SMALL = ("training.batch_size=4", "training.num_epochs=3", "training.steps_per_epoch=1")


def test_a_run_whose_engine_is_silent_is_saved_and_stops(tmp_path, caplog, monkeypatch):
    now, num_waiting = [0.0], 0
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(watchdog.Watchdog, "_pause", lambda self: 0.01)
    with small_trainer(tmp_path, Memory, *SMALL, "inference.stall_timeout=60") as trainer:
        trainer.fit(num_epochs=1)
        engine = trainer.components.engine

        async def say_nothing(request):
            nonlocal num_waiting
            num_waiting += 1
            if num_waiting == 4:
                now[0] += 100.0
            await asyncio.Event().wait()

        engine.sample = say_nothing
        with pytest.raises(EngineStalled, match="Waiting: 4 for the engine"):
            trainer.fit(num_epochs=2)
        assert trainer.step == 1
        del engine.sample
        folder = RunFolder(trainer.run_folder)
        assert folder.status["status"].startswith("stopped: nothing arrived from the engine")
        assert "turnwise: episodes" in caplog.text  # the threads, and where they are
        trainer.fit(num_epochs=2)  # the engine answers again
        assert trainer.step == 3
        assert folder.status["status"] == "finished"
