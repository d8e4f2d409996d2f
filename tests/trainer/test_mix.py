"""Several environments in one run: unmixed groups, metrics and evaluation of each, exact resume."""

import json

import pytest

from trainer.runs import assert_same_run, episodes, fit_to_the_end
from trainer.worlds import LETTERS, Echo, Memory, small_trainer, training
from turnwise import ConfigError, ConfigStore, Levels

SETTINGS = (
    *training(
        "adv_estimator=grpo group_size=2 batch_size=4 resample=1 num_epochs=2 steps_per_epoch=2 "
        "warm_start=expert warm_start_steps=2 eval_episodes=2"
    ),
    "inference.max_tokens=2",
)


class Asked(Echo):
    """The letter of its task; without one, a letter that is never right."""

    def reset(self):
        super().reset()
        self.letter = self.task["letter"] if self.task else "z"
        return self.letter


def twice(trajectory):
    return 2 * trajectory.total_reward


def mix():
    rows = [{"letter": letter} for letter in LETTERS]
    return [
        {"environment": Memory, "weight": 3, "name": "memory", "reward": twice},
        {"environment": Asked, "dataset": rows, "system_prompt": "Say it."},
    ]


def make(folder, **options):
    return lambda listener=None: small_trainer(
        folder, None, *SETTINGS, environments=mix(), reporter=listener, **options
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder, history, _ = fit_to_the_end(make(tmp_path_factory.mktemp("whole")))
    return folder, history


def test_every_group_is_of_one_part_and_the_parts_have_their_shares(run):
    folder, _ = run
    counted = {"memory": set(), "Asked": set()}
    for (kind, step), stored in episodes(folder).items():
        if kind != "train":
            continue
        groups = {}
        for episode in stored:
            groups.setdefault(episode["group"], set()).add(episode["part"])
            counted[episode["part"]].add((step, episode["group"]))
            turns = len(episode["agents"][0]["turns"])
            assert turns == (3 if episode["part"] == "memory" else 1)
            system = episode["agents"][0]["messages"][0]
            is_told = system["role"] == "system" and "Say it." in system["content"]
            assert is_told == (episode["part"] == "Asked")
        assert all(len(parts) == 1 for parts in groups.values())
    assert {name: len(groups) for name, groups in counted.items()} == {"memory": 12, "Asked": 4}


def test_the_metrics_are_of_each_part_and_of_all(run):
    folder, history = run
    for metrics in history:
        assert metrics["memory/num_groups"] == 3
        assert metrics["Asked/num_groups"] == 1
        assert (metrics["memory/turns"], metrics["Asked/turns"]) == (3, 1)
        assert metrics["turns"] == pytest.approx((3 * 3 + 1) / 4)
        for name in ("reward", "zero_variance"):
            mean = (3 * metrics[f"memory/{name}"] + metrics[f"Asked/{name}"]) / 4
            assert metrics[name] == pytest.approx(mean)
        # Its own reward function counts twice what the environment gives.
        assert metrics["memory/reward"] == pytest.approx(2 * metrics["memory/success"])
        assert metrics["Asked/reward"] == pytest.approx(metrics["Asked/success"])
    stored = json.loads((folder / "run.json").read_text())
    assert stored["environment"] == "memory+Asked"
    assert {"environment of memory", "environment of Asked", "dataset of Asked"} <= {
        *stored["identity"]
    }


def test_each_part_is_evaluated_and_the_whole_is_weighted(run):
    _, history = run
    for metrics in (history[1], history[3]):
        for way in ("greedy", "sampled"):
            memory, asked = (metrics[f"eval/{p}/{way}/reward"] for p in ("memory", "Asked"))
            mean = (3 * memory + asked) / 4
            assert metrics[f"eval/{way}/reward"] == pytest.approx(mean)
            # The standard deviation is of the mixture: its environments' means differ too.
            stds = [metrics[f"eval/{p}/{way}/reward_std"] for p in ("memory", "Asked")]
            square = (3 * (stds[0] ** 2 + memory**2) + stds[1] ** 2 + asked**2) / 4
            std = max(square - mean**2, 0.0) ** 0.5
            assert metrics[f"eval/{way}/reward_std"] == pytest.approx(std, abs=1e-6)
    assert "eval/greedy/reward" not in history[0]


def test_a_run_that_was_stopped_is_the_run_that_never_was(run, tmp_path):
    moments = [("warm start", 1), ("step", 3)]
    folder, _, listeners = fit_to_the_end(make(tmp_path), lambda *moment: moment in moments)
    assert len(listeners) == 3
    assert_same_run(run[0], folder)


def test_the_folder_has_the_mix_and_its_settings_make_it_again(run):
    folder, _ = run
    config = ConfigStore.load(folder / "config.yaml")
    first, second = config.environments
    assert (first.name, first.weight, second.name, second.weight) == ("memory", 3.0, "Asked", 1.0)
    assert first.environment.endswith("worlds:Memory")
    assert first.reward.endswith("test_mix:twice")
    assert second.dataset.path == [str(folder / "dataset-Asked.jsonl")]  # rows that a test made
    assert second.system_prompt == "Say it."
    assert "environment:" not in [
        line for line in (folder / "config.yaml").read_text().splitlines() if line[:1] == "e"
    ]


def test_each_part_may_have_a_curriculum(tmp_path):
    levels = Levels([{"letter": "a"}, {"letter": "b"}], up=0.01, down=0.0)
    environments = [
        {"environment": Asked, "curriculum": levels, "name": "asked"},
        {"environment": Echo, "weight": 2, "name": "echo"},
    ]
    with small_trainer(
        tmp_path, None, *SETTINGS, "training.warm_start=null", environments=environments
    ) as trainer:
        played = trainer.rollout()
        tasks = {result.part: result.trajectory.task for result in played}
        assert tasks == {"asked": {"letter": "a"}, "echo": None}
        trainer.train_step(played)
        state = levels.state_dict()
        levels.level = 1
        trainer.save_checkpoint(tmp_path / "saved")
        levels.load_state_dict(state)
        trainer.load_checkpoint(tmp_path / "saved")
        assert levels.level == 1


def test_python_takes_what_yaml_takes(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"letter": "a"}\n')
    part = {
        "environment": Asked,
        "reward": f"{__file__}:twice",
        "dataset": {"path": str(tmp_path / "rows.jsonl"), "max_rows": 1},
        "tools": ["calculator"],
        "system_prompt": "",
    }
    with small_trainer(
        tmp_path, None, environments=[part, Echo], system_prompt="Play.", tools=[]
    ) as trainer:
        asked, echo = trainer._user.mix
        assert asked.components.dataset[0]["letter"] == "a"
        assert asked.components.reward_fn.__name__ == "twice"
        assert (asked.components.system_prompt, echo.components.system_prompt) == ("", "Play.")
        collector = trainer.components.collector
        assert [len(collector.part(name).setup.tools) for name in ("Asked", "Echo")] == [1, 0]


class TestRefused:
    @pytest.mark.parametrize(
        ("environments", "message"),
        [
            ([], "environments got an empty list"),
            ([(Echo, 0)], r"environments.0.weight got 0"),
            ([(Echo, 1, 2)], "expected an environment"),
            (
                [{"environment": Echo, "wieght": 2, **dict.fromkeys(["z", "odd", "b", "a"])}],
                "Did you mean 'weight'",  # the first one
            ),
            ([{"weight": 2}], "expected an environment"),
            ([{"environment": Echo(), "max_steps": 2}], "Echo is an instance"),
            ("guess-number", "expected a list of environments"),
        ],
    )
    def test_mixes_that_are_none(self, tmp_path, environments, message):
        with pytest.raises(ConfigError, match=message):
            small_trainer(tmp_path, None, environments=environments)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"environment": Echo}, "environment= and a mix of environments are both given"),
            ({"dataset": [{"letter": "a"}]}, "dataset= and a mix .*belong to one environment"),
            ({"curriculum": Levels([{}])}, "curriculum= and a mix .*both given"),
        ],
    )
    def test_what_only_one_environment_can_have(self, tmp_path, given, message):
        given = {"environment": None, **given}
        with pytest.raises(ConfigError, match=message):
            small_trainer(tmp_path, environments=[Echo, Asked], **given)
