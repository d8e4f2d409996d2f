"""kill -9 of workers on Ray, 8 times in one run: it finishes, and it is the same run.

With TURNWISE_THOROUGH=1 in the environment the run is longer, and it is 20 times.

Episode workers die at each of an environment's steps, learners in the middle of an update, in
every step of the run. Who dies is decided by files: whoever gets hold of one dies of it, once.
"""

import os
import signal

import pytest

from scale.rayed import ON_RAY, Deadly, arm, largest_difference, lay_fuses, train
from trainer.runs import Listener, episodes, metrics_of
from trainer.worlds import Memory
from turnwise.scale.ray import learner

NUM_STEPS = 5 if os.environ.get("TURNWISE_THOROUGH") else 2
# In each step: at each step of an episode one worker, and one learner in the update.
KINDS = ("episode0", "episode1", "episode2", "update")
LONGER = (f"training.steps_per_epoch={NUM_STEPS}",)


class Layer(Listener):
    """Lays the fuses of the next step when one is done, and looks that all have burned."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.num_laid = 0
        self.lay()

    def lay(self):
        for kind in KINDS:
            lay_fuses(self.folder, kind, 1)
            self.num_laid += 1

    def step(self, metrics):
        super().step(metrics)
        assert not list(self.folder.iterdir())
        if metrics["step"] < NUM_STEPS:
            self.lay()


def test_workers_die_in_every_step_and_the_run_is_the_same(tmp_path):
    alone = train(tmp_path / "alone", Memory, *LONGER)
    fuses = tmp_path / "fuses"
    fuses.mkdir()
    layer = Layer(fuses)
    before = arm(fuses)
    lost = []

    def watch(trainer):
        before(trainer)
        lost.append(trainer.components.engine.pool.failures)

    run = train(
        tmp_path / "run",
        Deadly,
        *(*ON_RAY, *LONGER, f"environment.params.fuses={fuses}"),
        before=watch,
        reporter=layer,
    )
    assert lost[0].num_lost == layer.num_laid == NUM_STEPS * len(KINDS)
    assert [m["num_episodes"] for m in metrics_of(run[2])] == [6] * NUM_STEPS
    # Each episode is there once, and is the one that one process plays.
    kept, expected = episodes(run[2]), episodes(alone[2])
    assert [[e["seed"] for e in played] for played in kept.values()] == [
        [e["seed"] for e in played] for played in expected.values()
    ]
    assert [m["reward"] for m in run[0]] == pytest.approx([m["reward"] for m in alone[0]])
    assert largest_difference(run[1], alone[1]) < 1e-5


def test_killed_from_outside_at_any_moment(tmp_path, monkeypatch):
    """Not where the code expects it: a worker of each kind, whatever it is doing then."""
    # Some of the dead are replaced from a kept state alone, others repeat an update.
    monkeypatch.setattr(learner, "_MAX_REPLAYED", 2)
    alone = train(tmp_path / "alone", Memory)
    trainers = []

    class Killer(Listener):
        def step(self, metrics):
            components = trainers[0].components
            os.kill(components.engine.pool.pids()[metrics["step"] % 2], signal.SIGKILL)
            os.kill(components.learner.group.pids()[metrics["step"] % 2], signal.SIGKILL)

    run = train(tmp_path / "run", Memory, *ON_RAY, before=trainers.append, reporter=Killer())
    assert [m["num_episodes"] for m in metrics_of(run[2])] == [6, 6, 6]
    assert largest_difference(run[1], alone[1]) < 1e-5
