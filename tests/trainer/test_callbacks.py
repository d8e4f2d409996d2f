"""Callbacks: a user's code after steps, evaluations and saves, which may stop the run."""

import pytest

from trainer.runs import Listener, metrics_of
from trainer.worlds import Echo, small_trainer, training
from turnwise import ConfigError
from turnwise.runs.run_folder import RunFolder

SMALL = (
    *training("warm_start=null batch_size=2 steps_per_epoch=2 num_epochs=2 eval_episodes=1"),
    "inference.max_tokens=1",
)


class Diary:
    def __init__(self):
        self.seen = []

    def on_step(self, trainer, metrics):
        assert metrics_of(trainer.run_folder)[-1]["step"] == metrics["step"] == trainer.step
        self.seen.append(("step", metrics["step"]))

    def on_evaluation(self, trainer, metrics):
        assert trainer.metrics_history[-1].items() >= metrics.items()
        assert "eval/greedy/reward" in metrics
        assert "reward" not in metrics
        self.seen.append(("evaluation", trainer.step))

    def on_save(self, trainer, path):
        assert (path / "state.json").is_file()
        self.seen.append(("save", trainer.step))


def test_they_are_called_beside_the_display(tmp_path):
    diary, listener = Diary(), Listener()
    options = {"callbacks": [diary], "reporter": listener}
    with small_trainer(tmp_path, Echo, *SMALL, **options) as trainer:
        trainer.fit()
    first = [("step", 1), ("step", 2), ("evaluation", 2), ("save", 2)]
    assert diary.seen == [*first, ("step", 3), ("step", 4), ("evaluation", 4), ("save", 4)]
    assert listener.steps == [1, 2, 3, 4]


class Enough:
    """Has one of the methods, and stops the run."""

    def __init__(self, event, at):
        def stop(trainer, value):
            if trainer.step == at:
                trainer.stop()

        setattr(self, event, stop)


@pytest.mark.parametrize(
    ("event", "at"), [("on_step", 1), ("on_evaluation", 2), ("on_save", 2)], ids=str
)
def test_one_may_stop_the_run(tmp_path, event, at):
    diary = Diary()
    callbacks = [Enough(event, at), diary]
    with small_trainer(tmp_path, Echo, *SMALL, callbacks=callbacks, reporter=None) as trainer:
        history = trainer.fit()
        assert len(history) == at
        assert RunFolder(trainer.run_folder).status["status"] == "finished"
        assert diary.seen[-1] == ("save", at)
        trainer.fit(1)  # the next one is not stopped
        assert trainer.step > at


def test_an_error_in_one_stops_the_run_and_says_why(tmp_path):
    class Broken:
        def on_step(self, trainer, metrics):
            return metrics["no such metric"]

    with small_trainer(tmp_path, Echo, *SMALL, callbacks=[Broken()], reporter=None) as trainer:
        with pytest.raises(KeyError):
            trainer.fit()
        status = RunFolder(trainer.run_folder).status["status"]
        assert status == "stopped: KeyError: 'no such metric'"


@pytest.mark.parametrize("method", ["fit", "cleanup", "load_checkpoint"])
def test_what_would_pull_the_run_from_under_fit_is_refused(tmp_path, method):
    class Callback:
        def on_step(self, trainer, metrics):
            getattr(trainer, method)(*[tmp_path][: method == "load_checkpoint"])

    settings = (*SMALL, "training.max_staleness=1")
    with small_trainer(tmp_path, Echo, *settings, callbacks=[Callback()], reporter=None) as trainer:
        with pytest.raises(ConfigError, match=rf"{method}\(\) was called while fit"):
            trainer.fit()
        assert trainer.step == 1


class Late:
    async def on_step(self, trainer, metrics):
        raise AssertionError("nobody awaits this")


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([Diary], r"got <class .*Diary.*, expected a list of objects"),
        ([print], "one of the methods on_step, on_evaluation, on_save"),
        (Diary(), "expected a list of objects"),
        ([Late()], "on_step is async, and fit.. awaits none. Write def on_step"),
    ],
)
def test_what_cannot_be_one_is_refused(tmp_path, callbacks, message):
    with pytest.raises(ConfigError, match=message):
        small_trainer(tmp_path, Echo, *SMALL, callbacks=callbacks)


def test_without_a_run_there_is_nothing_to_stop(tmp_path):
    with (
        small_trainer(tmp_path, Echo, *SMALL) as trainer,
        pytest.raises(ConfigError, match="there is no run to stop"),
    ):
        trainer.stop()
