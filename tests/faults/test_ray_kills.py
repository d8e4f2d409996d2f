"""kill -9 of workers on Ray, from outside: the run finishes, and it is the same run.

Deaths at known steps of episodes and updates are in `tests/scale/test_ray.py`.
"""

import os
import signal

from scale.rayed import ON_RAY, largest_difference, train
from trainer.runs import Listener, metrics_of
from trainer.worlds import Memory
from turnwise.scale.ray import learner


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
