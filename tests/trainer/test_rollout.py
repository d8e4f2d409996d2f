"""Which episodes a step plays: groups, rows of datasets, levels of a curriculum."""

import itertools

import numpy as np
import pytest

from trainer.runs import episodes
from trainer.worlds import LETTERS, QUICK, Echo, small_trainer, training
from turnwise import ConfigError, CustomEnvDataset
from turnwise.trainer import Levels

ROWS = [{"prompt": f"Say {letter}.", "answer": letter} for letter in LETTERS]


def advantages(agent):
    """Those of the sampled tokens; the others have none."""
    column = np.frombuffer(agent["columns"]["advantages"], dtype=np.float32)
    return set(column[~np.isnan(column)].tolist())


class Coin(Echo):
    """Its seed decides what is earned, or the agent's words do."""

    def step(self, action):
        self._done = True
        text = sum(map(ord, action))
        return "", float(text if self.letter in "ab" else 1), True, {}


def first_words(folder, step, kind="train"):
    """What the agent of each episode of a step read first."""
    return [e["agents"][0]["messages"][-2]["content"] for e in episodes(folder)[kind, step]]


class TestGroups:
    GROUPS = (*QUICK, "training.adv_estimator=grpo", "training.group_size=3")

    def test_dull_ones_are_counted(self, tmp_path):
        with small_trainer(tmp_path, Coin, *self.GROUPS, "training.batch_size=12") as trainer:
            history = trainer.fit()
        assert all(0 < m["zero_variance"] < 1 and m["num_resampled"] == 0 for m in history)
        assert all(m["num_groups"] == 12 and m["num_episodes"] == 36 for m in history)
        stored = episodes(trainer.run_folder)["train", 1]
        rewards = {}
        for episode in stored:
            reward = episode["agents"][0]["reward"]["total"]
            rewards.setdefault(episode["group"], []).append(reward)
        dull = sum(len(set(earned)) == 1 for earned in rewards.values())
        assert history[0]["zero_variance"] == dull / 12

    def test_dull_ones_are_replaced(self, tmp_path):
        settings = (*self.GROUPS, "training.batch_size=6", "training.resample=8")
        with small_trainer(tmp_path, Coin, *settings) as trainer:
            history = trainer.fit()
        for metrics in history:
            assert metrics["num_resampled"] == round(metrics["zero_variance"] * 6) > 0
        for step in (1, 2):
            stored = episodes(trainer.run_folder)["train", step]
            assert [(e["group"], e["member"]) for e in stored] == [
                (group, member) for group in range(6) for member in range(3)
            ]
            assert {e["agents"][0]["messages"][-2]["content"] for e in stored} <= {"a", "b"}
            for group in range(6):
                seeds = {e["seed"] for e in stored if e["group"] == group}
                assert len(seeds) == 1

    REMAX = (*QUICK, "training.adv_estimator=remax", "training.on_error=drop_group")

    def test_a_group_without_a_baseline_is_left_out(self, tmp_path):
        resets = itertools.count(1)

        class Breaks(Echo):
            """Earns 10, but in the greedy episodes of two groups, which fail."""

            def reset(self):
                if next(resets) in (5, 7):
                    raise ValueError("broken on purpose")
                return super().reset()

            def step(self, action):
                self._done = True
                return "", 10.0, True, {}

        with small_trainer(tmp_path, Breaks, *self.REMAX) as trainer:
            history = trainer.fit(1)
        assert history[0]["num_groups_without_baseline"] == 2
        assert history[0]["reward"] == 10.0  # of all four
        stored = episodes(trainer.run_folder)["train", 1]
        assert [advantages(episode["agents"][0]) for episode in stored] == [{0.0}] * 4

    def test_each_agent_has_its_own_baseline_which_starts_where_its_group_started(self, tmp_path):
        class Two(Echo):
            """The second player earns more than the first one; the start decides what."""

            players = ("x", "o")

            @property
            def current_player(self):
                return self.players[self.step_count % 2]

            def step(self, action):
                self.step_count += 1
                self._done = self.step_count == 2
                earned = ord(self.letter)
                rewards = {"x": earned, "o": 5.0 + earned} if self._done else {}
                return "", 0.0, self._done, {"rewards": rewards}

        with small_trainer(tmp_path, Two, *self.REMAX) as trainer:
            history = trainer.fit(1)
        assert history[0]["num_groups_without_baseline"] == 0
        for episode in episodes(trainer.run_folder)["train", 1]:
            x, o = (agent["reward"]["total"] for agent in episode["agents"])
            assert o == x + 5.0
            for agent in episode["agents"]:
                assert advantages(agent) == {0.0}


class TestDatasets:
    def test_rows_with_answers_and_no_environment(self, tmp_path):
        with small_trainer(tmp_path, None, *QUICK, dataset=ROWS) as trainer:
            history = trainer.fit()
        assert trainer.run_folder == tmp_path / "prompts"
        assert [m["num_episodes"] for m in history] == [4, 4]
        assert sorted(first_words(trainer.run_folder, 1)) == [row["prompt"] for row in ROWS]

    def test_an_epoch_is_a_pass_over_the_rows(self, tmp_path):
        rows = [{"prompt": f"Number {n}", "answer": "a"} for n in range(6)]
        settings = (*QUICK, "training.batch_size=2", "training.steps_per_epoch=null")
        with small_trainer(tmp_path, None, *settings, dataset=rows) as trainer:
            history = trainer.fit()
        assert [m["epoch"] for m in history] == [1, 1, 1, 2, 2, 2]
        orders = []
        for epoch in (0, 1):
            words = [first_words(trainer.run_folder, 3 * epoch + step) for step in (1, 2, 3)]
            orders.append([word for pair in words for word in pair])
            assert sorted(orders[-1]) == [row["prompt"] for row in rows]
        assert orders[0] != orders[1]

    def test_evaluation_has_rows_of_its_own(self, tmp_path):
        held_out = [{"prompt": "Held out.", "answer": "x"}]
        settings = (*QUICK, "training.eval_episodes=2")
        with small_trainer(
            tmp_path, None, *settings, dataset=ROWS, eval_dataset=held_out
        ) as trainer:
            trainer.fit()
        assert first_words(trainer.run_folder, 1, "eval-greedy") == ["Held out."] * 2

    def test_an_opening_that_comes_twice_in_a_step_is_not_played_twice_alike(self, tmp_path):
        """Every request has its own seed, over steps, groups, members and rounds of replacement."""
        openings = CustomEnvDataset(Echo, size=3, seed=100)
        settings = (
            *QUICK,
            *training("adv_estimator=grpo group_size=2 batch_size=6 resample=2"),
            "inference.max_tokens=1",
        )
        seeds = []
        with small_trainer(tmp_path, Echo, *settings, dataset=openings) as trainer:
            engine = trainer.components.engine
            sample = engine.sample

            async def recording(request):
                seeds.append(request.seed)
                return await sample(request)

            engine.sample = recording
            history = trainer.fit()
        assert {m["num_episodes"] for m in history} == {12}
        assert len(seeds) > 24
        assert len(set(seeds)) == len(seeds)


class Level(Echo):
    """Success is what the task says."""

    def step(self, action):
        self._done = True
        return "", 1.0, True, {"success": self.task["level"] < 2}


class TestCurriculum:
    LEVELS = tuple({"level": level} for level in range(4))

    def test_up_while_it_succeeds(self, tmp_path):
        levels = Levels(self.LEVELS)
        settings = (*QUICK, "training.num_epochs=5")
        with small_trainer(tmp_path, Level, *settings, curriculum=levels) as trainer:
            history = trainer.fit()
        # At level 2 nothing succeeds any more: down, and up again.
        assert [m["success"] for m in history] == [1, 1, 0, 1, 0]
        assert levels.level == 1

    def test_one_that_chooses_too_few(self, tmp_path):
        class Short(Levels):
            def choose(self, num_tasks, rng):
                return self.tasks[:1]

        with pytest.raises(ConfigError, match="the curriculum chose 1 tasks, expected 4"):
            small_trainer(tmp_path, Level, *QUICK, curriculum=Short(self.LEVELS)).fit()

    @pytest.mark.parametrize("bounds", [{"up": 1.1}, {"up": 0.2, "down": 0.2}, {"down": -1}])
    def test_bounds_that_make_no_sense(self, bounds):
        with pytest.raises(ConfigError, match="expected 0 <= down < up <= 1"):
            Levels(self.LEVELS, **bounds)
        with pytest.raises(ConfigError, match="at least one level"):
            Levels([])
