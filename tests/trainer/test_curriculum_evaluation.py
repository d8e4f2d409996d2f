"""A run with a curriculum is evaluated on its tasks; an evaluation that only fails is an error."""

import json
from pathlib import Path

import pytest

from trainer.runs import Listener, metrics_of
from trainer.worlds import Echo, small_trainer, training
from turnwise import Levels
from turnwise.runs.doctor import findings
from turnwise.runs.headline import headline
from turnwise.runs.run_folder import RunFolder
from turnwise.trainer.rollout import held_out_tasks

SMALL = (
    *training("warm_start=null batch_size=2 max_steps=2 eval_episodes=4"),
    "inference.max_tokens=1",
)


class Asked(Echo):
    """Cannot begin without a task."""

    def reset(self):
        super().reset()
        self.letter = self.task["letter"]
        return self.letter


class Chosen:
    """A curriculum of the user's own, without a list of tasks."""

    def choose(self, num_tasks, rng):
        return [{"letter": rng.choice("ab")} for _ in range(num_tasks)]

    def observe(self, success, reward): ...

    def state_dict(self):
        return {}

    def load_state_dict(self, state): ...


LEVELS = [{"letter": letter} for letter in "abcd"]


@pytest.mark.parametrize("curriculum", [Levels(LEVELS), Chosen()], ids=["levels", "own"])
def test_its_tasks_are_evaluated(tmp_path, curriculum):
    listener = Listener()
    options = {"curriculum": curriculum, "reporter": listener}
    with small_trainer(tmp_path, Asked, *SMALL, **options) as trainer:
        trainer.fit()
        assert trainer.evaluate(8)["errors"] == 0.0
    last = metrics_of(trainer.run_folder)[-1]
    assert last["eval/greedy/errors"] == last["eval/sampled/errors"] == 0.0
    assert last["eval/greedy/num_episodes"] == 4
    assert not [line for line in listener.said if "error" in line]


def test_its_tasks_are_recorded_for_other_commands(tmp_path):
    with small_trainer(tmp_path, Asked, *SMALL, curriculum=Levels(LEVELS)) as trainer:
        trainer.fit()
    rows = RunFolder(trainer.run_folder).settings().eval_dataset.paths
    letters = [json.loads(line)["letter"] for line in Path(rows[0]).read_text().splitlines()]
    assert letters == ["d", "c", "b", "a"]  # few episodes play the hardest


def test_in_a_mix(tmp_path):
    mix = [{"environment": Asked, "curriculum": Levels(LEVELS)}, Echo]
    with small_trainer(tmp_path, None, *SMALL, environments=mix) as trainer:
        trainer.fit()
    last = metrics_of(trainer.run_folder)[-1]
    assert last["eval/Asked/greedy/errors"] == 0.0


class Moody(Echo):
    """Breaks with some seeds."""

    bad_seeds = frozenset(task.seed for task in held_out_tasks(4, seed=0)[:3])

    def seed(self, seed):
        if seed in self.bad_seeds:
            raise RuntimeError("not today")
        super().seed(seed)


def test_an_evaluation_in_which_some_episodes_fail_says_so(tmp_path):
    listener = Listener()
    settings = (*SMALL, "training.max_steps=1", "training.seed=0")
    with small_trainer(tmp_path, Moody, *settings, reporter=listener) as trainer:
        trainer.fit()
    (line,) = [line for line in listener.said if line.startswith("error: ")]
    assert "3 of 4 episodes of the evaluation failed; the first one with" in line
    assert "not today" in line
    last = metrics_of(trainer.run_folder)[-1]
    assert last["eval/greedy/errors"] == 0.75
    assert last["eval/greedy/num_episodes"] == last["eval/greedy/turns"] == 1
    assert "1 greedy episodes" in str(headline([last]))
    (finding,) = findings(trainer.run_folder)
    assert finding.code == "failed-evaluation"
    assert "75% of its episodes failed" in finding.text
