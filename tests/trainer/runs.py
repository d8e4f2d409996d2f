"""What a run left behind, in a form that can be compared; and reporters that stop one."""

import contextlib
import dataclasses
import json
import re
import signal
from collections import Counter

from turnwise.runs.checkpoints import CheckpointStore
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.run_folder import RunFolder


class Listener:
    """Hears all that a trainer says; sends Ctrl-C where it is told to."""

    def __init__(self, stop_at=lambda what, number: False):
        self.said = []
        self.steps = []
        self.outcomes = []
        self.run = None
        self._stop_at = stop_at

    def begin(self, run):
        self.run = run

    def step(self, metrics):
        self.steps.append(metrics["step"])
        self._look("step", metrics["step"])

    def say(self, text):
        self.said.append(text)

    def progress(self, what, done, total):
        self._look(what, done)

    def end(self, outcome):
        self.outcomes.append(outcome)

    def _look(self, what, number):
        if self._stop_at(what, number):
            signal.raise_signal(signal.SIGINT)


def fit_to_the_end(make, stop_at=lambda what, number: False):
    """Train, and start again with a new trainer after each Ctrl-C, until it is finished."""
    listeners, stopped = [], set()

    def once(what, number):
        """The moment that was stopped at comes again when the run goes on."""
        started = listeners[-1].run.first_step if listeners[-1].run else 0
        moment = (what, number, started if what != "step" else None)
        if moment in stopped or not stop_at(what, number):
            return False
        stopped.add(moment)
        return True

    while True:
        listeners.append(Listener(once))
        with make(listeners[-1]) as trainer, contextlib.suppress(KeyboardInterrupt):
            trainer.fit()
        (outcome,) = listeners[-1].outcomes
        if outcome == "finished":
            return trainer.run_folder, trainer.metrics_history, listeners
        assert outcome == "interrupted"
        assert len(listeners) < 100


def metrics_bytes(folder):
    """The metrics file as it stands, but for what depends on the clock."""
    data = RunFolder(folder).metrics_file.read_bytes()
    return re.sub(rb', "time/[^"]*": [^,}]*', b"", data)


def newest_files(folder):
    """The files of the newest checkpoint; of its metrics without the times."""
    newest = CheckpointStore(RunFolder(folder).checkpoints).newest()
    files = {name: newest.file(name).read_bytes() for name in newest.files}
    return newest.step, files


def episodes(folder):
    """All that was kept of every episode, but for the seconds."""
    store = EpisodeStore(RunFolder(folder).episodes, 1)
    found = {}
    for kind in ("train", "eval-greedy", "eval-sampled"):
        for step in store.steps(kind):
            found[kind, step] = [_plain(dataclasses.asdict(e)) for e in store.read(step, kind)]
    return found


def trained(folder):
    """How often each episode was trained on, by its seed and its place in the group."""
    found = episodes(folder)
    played = (episode for key in found if key[0] == "train" for episode in found[key])
    return Counter((episode["seed"], episode["member"]) for episode in played)


def _plain(value):
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if name != "seconds"}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tobytes() if hasattr(value, "tobytes") else value  # a NaN is equal to itself


def assert_same_run(left, right):
    """Two runs left the same bytes behind, what depends on the clock aside."""
    assert metrics_bytes(left) == metrics_bytes(right)
    (left_step, left_files), (right_step, right_files) = newest_files(left), newest_files(right)
    assert left_step == right_step
    assert set(left_files) == set(right_files)
    for name in left_files:
        if name != "config.yaml":  # it names the folder
            assert left_files[name] == right_files[name], name
    left_episodes, right_episodes = episodes(left), episodes(right)
    assert left_episodes.keys() == right_episodes.keys()
    for kind, step in left_episodes:
        assert left_episodes[kind, step] == right_episodes[kind, step], (kind, step)


def metrics_of(folder):
    return [json.loads(line) for line in RunFolder(folder).metrics_file.read_text().splitlines()]
