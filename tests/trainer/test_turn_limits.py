"""How many turns an episode has: the environment's own limit, or an explicit one."""

import asyncio
import dataclasses
import json

import pytest

from trainer.runs import Listener
from trainer.worlds import Several, small_trainer
from turnwise import BaseEnvironment, ConfigStore, EpisodeLimits, Trainer, tool
from turnwise.episode import EpisodeCollector, episode_limits
from turnwise.errors import ConfigError
from turnwise.inference import ScriptedEngine
from turnwise.models import load_tokenizer
from turnwise.trainer.components import UserComponents
from turnwise.trainer.recording import recorded
from turnwise.types import EpisodeStatus


class Long(BaseEnvironment):
    """Ends by itself after 15 steps, like many games with more than ten moves."""

    quick = True
    max_steps = 15

    def reset(self):
        return "Begin."

    def step(self, action):
        is_over = self.step_count == 14
        return "Go on.", float(is_over), is_over, {}

    def get_state_description(self):
        return str(self.step_count)


class LongBySettings(Long):
    """Sets its limit in the constructor, which the class does not show."""

    max_steps = 10

    def __init__(self, config=None):
        super().__init__(config)
        self.max_steps = 15


def play(environment, limits):
    engine = ScriptedEngine(load_tokenizer("tiny"), "go")
    (result,) = asyncio.run(EpisodeCollector(engine, environment, limits=limits).collect(1))
    return result


@pytest.mark.parametrize("environment", [Long, LongBySettings])
def test_the_default_is_the_environments_own_limit(environment):
    result = play(environment, episode_limits(ConfigStore()))
    assert result.status is EpisodeStatus.DONE
    assert result.trajectory.num_turns == 15


def test_an_environment_that_never_ends_is_cut_at_its_own_limit():
    class Endless(Long):
        max_steps = 70

        def step(self, action):
            return "Go on.", 0.0, False, {}

    result = play(Endless, EpisodeLimits())
    assert (result.status, result.trajectory.num_turns) == (EpisodeStatus.TRUNCATED_BY_TURNS, 70)
    assert result.error is None


@pytest.mark.parametrize("environment", [Long, LongBySettings, Long()])
def test_a_limit_below_the_environments_own_is_reported_once(environment):
    config = ConfigStore.load(overrides=["inference.max_turns=3", "inference.max_tokens=2"])
    config.training.batch_size = 2
    listener = Listener()
    with Trainer(config, environment, reporter=listener) as trainer:
        for _ in range(2):
            trainer.train_step()
    assert [text for text in listener.said if "max_steps" in text] == [
        "an episode was cut after 3 turns, and the environment has max_steps = 15. Raise "
        "inference.max_turns (or limits.max_turns), or leave it out: the environment's own limit "
        "is the default."
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"config": {"inference": {"max_turns": 5}, "limits": {"max_turns": 7}}},
        {"config": {"inference": {"max_turns": 5}}, "limits": EpisodeLimits(max_turns=7)},
    ],
)
def test_two_different_turn_limits_are_refused(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"inference.max_turns got 5 and limits.max_turns got 7"):
        Trainer(environment=Long, **given).fit()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "given", "horizon"),
    [
        ((), {}, 12),  # three tokens, four steps
        (("inference.max_turns=2",), {}, 6),
        (("limits.max_tokens_per_turn=7",), {}, 28),
        (("limits.max_tokens=9",), {}, 9),
        (("limits.max_tokens=9", "limits.max_context_tokens=8"), {}, 12),  # it may sample more
        (("inference.multi_turn=false",), {}, 3),
        ((), {"limits": EpisodeLimits(max_turns=2, max_tokens_per_turn=8)}, 16),
        ((), {"limits": EpisodeLimits(max_turns=2, max_tokens_per_turn=None)}, None),
        ((), {"limits": EpisodeLimits(max_seconds=100)}, 12),
        (("inference.max_turns=2",), {"limits": EpisodeLimits(max_tokens_per_turn=8)}, 16),
        (("inference.max_tokens=5",), {"limits": EpisodeLimits(max_turns=2)}, 10),
        (("inference.multi_turn=false",), {"limits": EpisodeLimits(max_turns=2)}, 3),
    ],
)
def test_the_horizon_of_the_loss_is_that_of_the_episodes(tmp_path, settings, given, horizon):
    class FourSteps(Several):
        max_steps = 4

    assert horizon_of(tmp_path, FourSteps, *settings, **given) == horizon


DEFAULTS = vars(EpisodeLimits())


@pytest.mark.parametrize("limit", DEFAULTS)
@pytest.mark.parametrize(
    "inference",
    [
        {},
        {"max_tokens": 4},
        {"max_turns": 3},
        {"multi_turn": False},
        {"multi_turn": False, "max_turns": 3},
    ],
)
def test_limits_in_python_are_those_of_the_settings_and_are_recorded(limit, inference):
    number = (DEFAULTS[limit] or 2) + 1
    config = ConfigStore.of({"inference": inference})
    given = UserComponents(environment=Long, limits=EpisodeLimits(**{limit: number}))
    in_force = given.filled_from(config).limits
    written = {"inference": inference, "limits": {limit: number}}
    assert in_force == episode_limits(ConfigStore.of(written))
    expected = {
        "max_turns": inference.get("max_turns"),
        "max_tokens_per_turn": inference.get("max_tokens", 64),
        limit: number,
    }
    if not inference.get("multi_turn", True):
        expected["max_turns"] = 1
    assert vars(in_force) == {**DEFAULTS, **expected}
    again = recorded(config, given).validate()
    assert episode_limits(again) == in_force
    assert UserComponents(environment=Long).filled_from(again).limits == in_force


def test_a_number_that_is_given_is_not_a_default():
    for number in (512, None):
        given = EpisodeLimits(max_tokens_per_turn=number)
        for limits in (given, dataclasses.replace(given, max_seconds=3)):
            assert episode_limits(ConfigStore(), limits).max_tokens_per_turn == number
    default = dataclasses.replace(EpisodeLimits(), max_seconds=3)
    assert episode_limits(ConfigStore(), default).max_tokens_per_turn == 64
    assert json.dumps(default.max_tokens_per_turn) == "512"


def test_turns_and_tokens_of_the_settings_stay_in_force_with_limits(tmp_path):
    settings = ("inference.max_tokens=4", "inference.max_turns=3", "training.batch_size=2")
    with small_trainer(tmp_path, Long, *settings, limits=EpisodeLimits(max_seconds=100)) as trainer:
        for episode in trainer.rollout():
            assert len(episode.agents[0].turns) == 3
            assert max(turn.tokens[1] - turn.tokens[0] for turn in episode.agents[0].turns) <= 4


def horizon_of(tmp_path, environment, *settings, **given):
    mode = "training.loss_agg_mode=seq-mean-token-sum-norm"
    with small_trainer(tmp_path, environment, mode, *settings, **given) as trainer:
        return trainer.components.learner.options.horizon


def test_the_horizon_is_that_of_the_environment_that_is_played(tmp_path):
    class Sized(Several):
        def __init__(self, size):
            super().__init__()
            self.size = size

        @property
        def max_steps(self):
            return self.size**2

        @tool
        def look(self) -> str:
            """Look around."""
            return "nothing"

    assert horizon_of(tmp_path / "a", "grid-world", "environment.params.size=6") == 36 * 3
    # Calls of tools are turns too, of which there may be 64.
    assert horizon_of(tmp_path / "b", Sized, "environment.params.size=3") == 64 * 3
    assert horizon_of(tmp_path / "c", Sized, "environment.params.size=9") == 81 * 3
