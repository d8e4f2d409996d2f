"""A user's mistake is seen at once: failed episodes are shown with the user's own lines."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from trainer.runs import Listener, metrics_of
from trainer.worlds import QUICK, Echo, Memory, small_trainer
from turnwise.episode import watchdog
from turnwise.errors import EngineStalled, TrainingStopped
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.run_folder import RunFolder


class Divides(Echo):
    def step(self, action):
        return "", 1 / 0, True, {}


class Three(Echo):
    def step(self, action):
        return "", 1.0, True


class FailsSometimes(Echo):
    def reset(self):
        self.is_bad = self.rng.random() < 0.5
        return super().reset()

    def step(self, action):
        if self.is_bad:
            raise KeyError("door")
        return super().step(action)


class Long(Echo):
    def reset(self):
        return "x" * 100_000


def bad_reward(trajectory):
    return trajectory.rewards[99]


def too_many(trajectory):
    return [1.0] * (trajectory.num_turns + 1 + trajectory.seed % 9)


def fitted(folder, environment, settings=(), **options):
    listener = Listener()
    settings = (*QUICK, *settings)
    with small_trainer(folder, environment, *settings, reporter=listener, **options) as trainer:
        trainer.fit()
    return listener


def test_a_run_whose_episodes_all_fail_alike_stops_with_the_users_lines(tmp_path):
    for environment, options, words in [
        (Divides, {}, ["test_failures.py", "in step", "return", "ZeroDivisionError"]),
        (Three, {}, ["Three.step() returned 3 values, expected 4"]),
        (Echo, {"reward_fn": bad_reward}, ["in bad_reward", "trajectory.rewards[99]"]),
    ]:
        with pytest.raises(TrainingStopped, match="every episode of the first step") as caught:
            fitted(tmp_path, environment, **options)
        for word in words:
            assert word in str(caught.value)
        assert "turnwise/episode" not in str(caught.value)  # only the user's own lines
        step, kept = failed_episodes(newest_run(tmp_path))
        assert step["errors"] == 1.0
        assert len(kept) == 4
        for word in words:
            assert word in f"{kept[0].error}\n{kept[0].traceback}"


def test_a_first_step_without_a_usable_episode_stops_the_run(tmp_path):
    with pytest.raises(TrainingStopped, match="every episode of the first step failed, so"):
        fitted(tmp_path, Echo, reward_fn=too_many)
    too_long = r"truncated by tokens: the first observation.*\(50,\d+ tokens\), does not fit"
    with pytest.raises(TrainingStopped, match=too_long):
        fitted(tmp_path, Long)


def test_dropped_episodes_are_kept_too(tmp_path):
    with pytest.raises(TrainingStopped, match="every episode of the first step"):
        fitted(tmp_path, Divides, settings=["training.on_error=drop_group"])
    assert len(failed_episodes(newest_run(tmp_path))[1]) == 4


def newest_run(folder):
    return max(folder.iterdir(), key=lambda run: run.stat().st_mtime_ns)


def failed_episodes(run):
    """The metrics of the one step of a run, and its failed episodes."""
    (step,) = metrics_of(run)
    kept = EpisodeStore(run / "episodes", 1).read(1)
    return step, [episode for episode in kept if episode.status.is_error]


def test_the_first_failure_of_each_kind_is_shown_once(tmp_path):
    said = fitted(tmp_path, FailsSometimes).said
    shown = [text for text in said if "episodes failed" in text]
    assert len(shown) == 1
    assert "KeyError: 'door'" in shown[0]
    assert 'raise KeyError("door")' in shown[0]


def test_one_environment_of_a_mix_that_only_fails_stops_the_run(tmp_path):
    with pytest.raises(TrainingStopped, match="every episode of Divides in the first step failed"):
        fitted(tmp_path, None, environments=[Echo, Divides])


class BreaksLater(Echo):
    """Works in the first step of a run, and never again."""

    num_resets = 0

    def reset(self):
        type(self).num_resets += 1
        if self.num_resets > 2:
            raise OSError("the server is gone")
        return super().reset()


def test_one_environment_of_a_mix_that_fails_later_on_stops_the_run_too(tmp_path):
    mix = [Echo, {"environment": BreaksLater, "name": "later"}]
    settings = ["training.num_epochs=9"]
    with pytest.raises(TrainingStopped) as caught:
        fitted(tmp_path, None, settings, environments=mix)
    why, kind, *lines = str(caught.value).splitlines()
    assert why.startswith("every episode of later failed in the same way in 5 steps in a row")
    assert kind == "environment error: OSError: the server is gone"
    assert lines[-1].strip() == 'raise OSError("the server is gone")'
    steps = metrics_of(newest_run(tmp_path))
    assert [step["later/errors"] for step in steps] == [0, 1, 1, 1, 1, 1]
    assert all(step["num_steps"] for step in steps)  # the other one was learned from
    status = json.loads((newest_run(tmp_path) / "run.json").read_text())["status"]
    assert status.startswith("stopped: every episode of later failed")


class Unpaid(Echo):
    """Pays nobody, and does not report success."""

    def step(self, action):
        return "", 0.0, True, {}


def test_success_that_is_not_reported_is_named_at_once(tmp_path):
    said = [text for text in fitted(tmp_path, Unpaid).said if not text.startswith("doctor")]
    assert len(said) == 1
    assert said[0].startswith("no episode reported success")


def test_what_the_doctor_said_a_moment_ago_is_not_said_again_at_the_end(tmp_path):
    said = fitted(tmp_path, Unpaid, ["training.steps_per_epoch=7"]).said
    assert len([text for text in said if text.startswith("doctor")]) == 1


SMALL = ("training.batch_size=4", "training.num_epochs=3", "training.steps_per_epoch=1")


def test_a_run_whose_engine_is_silent_is_saved_and_stops(tmp_path, caplog, monkeypatch):
    now, num_waiting = [0.0], 0
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with small_trainer(tmp_path, Memory, *SMALL, "inference.stall_timeout=0.1") as trainer:
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
