"""The table of mistakes: what a user does wrong, and the words that must be in what it says."""

import asyncio
import math
import re
import types

import numpy as np
import pytest
import torch

from turnwise import (
    BaseEnvironment,
    ConfigStore,
    EpisodeLimits,
    JSONActionParser,
    Levels,
    Trainer,
    create_trainer,
)
from turnwise.episode import EpisodeCollector
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.inference import ScriptedEngine
from turnwise.models.tiny import make_tiny_tokenizer
from virtual_time import Clock, run_in_virtual_time

TOKENIZER = make_tiny_tokenizer()


class Good(BaseEnvironment):
    """Nothing is wrong with it."""

    quick = True

    def reset(self):
        return "hi"

    def step(self, action):
        return "", 1.0, True, {}

    def get_state_description(self):
        return ""


def failure(environment=Good, **options):
    """An episode's failure, as a run shows it: the error, and the place in the user's code."""
    collector = EpisodeCollector(
        ScriptedEngine(TOKENIZER, "go"), environment, num_retries=0, **options
    )
    played = collector.collect_sync(1)
    (result,) = [*played, *played.dropped]
    return result.error, result.traceback


def maze(method, value):
    """An environment of which a method returns this."""

    def now(self, *_):
        return value

    return type("Maze", (Good,), {method: now})


STEPS = [
    (("", 1.0), "returned 2 values, expected 4"),
    (("", 1.0, True, False, {}), "GymnasiumEnvironment"),
    (None, "on every path"),
    ("abcd", "returned type str, expected 4"),
    (("", "1.0", True, {}), "a reward of type str"),
    (("", np.array([1.0, 2.0]), True, {}), "a reward of type ndarray"),
    (("", None, True, {}), "a reward of None"),
    (("", math.nan, True, {}), "a reward of nan, expected a finite number"),
    (("", np.float32("inf"), True, {}), "a reward of inf, expected a finite number"),
    (("", 1.0, "yes", {}), "done='yes', expected True or False"),
    (("", True, 0.5, {}), "done=0.5, expected True or False"),
    (("", 1.0, True, {"success": "no"}), "success='no', expected True or False"),
    (("", 1.0, True, {"truncated": "no"}), "truncated='no', expected True or False"),
    (("", 1.0, True, "x"), "info of type str, expected a dict"),
    (({"a": 1}, 1.0, True, {}), "an observation of type dict, expected str"),
]
RESETS = [
    (None, "an observation of None"),
    (("hi", {}), "without an info"),
    ([{"type": "txt", "text": "hi"}], "a part of type 'txt'; this model takes text only"),
    ([{"type": "text"}], "a part of type 'text', which has no 'text'"),
    (3, "an observation of type int, expected str"),
]


def name(value):
    """The name of a case: an object's address would be another one in each process."""
    return value[:50] if isinstance(value, str) else type(value).__name__


@pytest.mark.parametrize(("value", "words"), STEPS, ids=name)
def test_what_step_may_not_return(value, words):
    error, place = failure(maze("step", value))
    assert error.startswith("Maze.step() ")
    assert words in error
    assert re.fullmatch(r'  File ".*test_table.py", line \d+, in now', place)  # the user's method


@pytest.mark.parametrize("value", [0, "5", None])
def test_a_limit_of_steps_that_is_none(value):
    error, _ = failure(type("Maze", (Good,), {"max_steps": value}))
    assert error == f"Maze.max_steps is {value!r}, expected a whole number of at least 1"


def test_what_a_collector_may_not_be_given():
    engine = ScriptedEngine(TOKENIZER, "go")
    with pytest.raises(ConfigError, match=r"'max_concurency'\. Did you mean 'max_concurrency'"):
        EpisodeCollector(engine, Good, max_concurency=2)
    with pytest.raises(ConfigError, match="groups got -1"):
        EpisodeCollector(engine, Good).collect_sync(-1)


@pytest.mark.parametrize(("value", "words"), RESETS, ids=name)
def test_what_reset_may_not_return(value, words):
    error, _ = failure(maze("reset", value))
    assert error.startswith("Maze.reset() ")
    assert words in error


def test_a_call_that_was_not_awaited():
    class Maze(Good):
        async def step(self, action):
            self.late = asyncio.sleep(0, 1.0)
            return "", self.late, True, {}

        def close(self):
            self.late.close()

    assert "await what is async" in failure(Maze)[0]


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.int64(1)])
def test_near_types_are_taken(reward):
    for answer in (("", reward, np.bool_(True), {}), ["", reward, 1, None]):
        assert failure(maze("step", answer)) == (None, None)
    assert failure(reward_fn=lambda trajectory: reward) == (None, None)


def test_what_a_reward_function_may_not_return():
    def score(trajectory):
        return "1.0"

    error, place = failure(reward_fn=score)
    assert error.startswith("reward function 'score': returned str")
    assert place.endswith("in score")


def test_code_that_raises_is_shown_with_its_lines():
    def score(trajectory):
        return trajectory.rewards[99]

    class Task(Good):
        def reset(self):
            return self.task["question"]

    error, place = failure(reward_fn=score)
    assert error == "reward function 'score': raised IndexError: list index out of range"
    file, line, last = place.split("\n")
    assert file.endswith("in score")
    assert line == "    return trajectory.rewards[99]"
    assert last == "IndexError: list index out of range"
    error, place = failure(Task)
    assert error.startswith("TypeError")
    assert 'return self.task["question"]' in place


# ---- what a trainer refuses, before there is a folder ----


class Plain:
    def reset(self):
        return ""


class NoStep(BaseEnvironment):
    def reset(self):
        return ""

    def get_state_description(self):
        return ""


class Sized(Good):
    def __init__(self, size, colour):
        super().__init__()


class NotReady:
    """As a tokenizer is whose vocabulary is missing."""

    name_or_path = "my-model"
    unk_token_id = 0

    def __init__(self, ids):
        self.ids = ids

    def encode(self, text, add_special_tokens):
        return self.ids


def three(a, b, c):
    return 1.0


def one(a: int) -> int:
    """Say it again."""
    return a


MISSPELT_PARAMS = {"environment": {"params": {"siez": 2, "colour": "red"}}}
TRAINERS = [
    ({"environment": Plain}, "class Plain(BaseEnvironment):"),
    ({"environment": Plain()}, "(Plain), expected a name"),
    ({"environment": types.ModuleType("maze")}, "environment got <module 'maze'>"),
    ({"environment": NoStep}, "NoStep has no method step"),
    ({"environment": Sized}, "environment.params: {size: ...}"),
    ({"environment": Sized, "config": MISSPELT_PARAMS}, "Did you mean 'size'?"),
    ({"environment": "guess-numbr"}, "Did you mean 'guess-number'?"),
    ({"environment": "nothing-like-it"}, "path/to/file.py:ClassName"),
    ({"reward_fn": three}, "missing a required argument: 'c'"),
    ({"reward_fn": "score"}, "expected a function of (trajectory)"),
    ({"config": {"batch_size": 4}}, "Did you mean 'training.batch_size'?"),
    ({"config": {"training": {"batch_size": "abc"}}}, "training.batch_size got 'abc'"),
    ({"config": "nowhere/run.yaml"}, "there is no configuration file nowhere/run.yaml"),
    ({"config": Good}, "Trainer(config, MyEnvironment)"),
    ({"config": ConfigStore().training}, "config got TrainingConfig"),
    ({"config": {"training": {"adv_estimator": "grop"}}}, "Did you mean 'grpo'?"),
    ({"config": {"inference": {"backend": "vlm"}}}, "no backend 'vlm'"),
    ({"config": {"training": {"warm_start": "expret"}}}, "training.warm_start got 'expret'"),
    ({"config": {"model": {"local_path": "/nowhere"}}}, "/nowhere, which does not exist"),
    ({"parser": "hermess"}, "Did you mean 'hermes'?"),
    ({"parser": JSONActionParser}, "expected a name such as 'hermes', or an object"),
    ({"parser": three}, "turnwise.ActionParser"),
    ({"curriculum": [{"size": 2}]}, "such as turnwise.Levels([...])"),
    ({"curriculum": Levels}, "expected an object with the methods choose, observe"),
    (
        {"environment": None, "environments": [{"environment": Good, "curriculum": 3}]},
        "curriculum got 3",
    ),
    ({"system_prompt": ["Be brief."]}, "system_prompt got ['Be brief.'], expected a string"),
    ({"model": "tiny", "tokenizer": TOKENIZER}, "model.model_name"),
    ({"tokenizer": 5}, "expected a Hugging Face tokenizer"),
    ({"tools": 5}, "tools got 5"),
    ({"tools": "calculator"}, "the setting tools: [calculator"),
    ({"tools": one}, "expected a list of functions"),
    ({"tools": [one, one]}, "there is already a tool 'one'"),
    ({"limits": {"max_turns": 5}}, "turnwise.EpisodeLimits: limits=EpisodeLimits(max_turns=5)"),
    ({"dataset": {"prompt": "a"}}, "Make a list of it"),
    ({"dataset": "rows.jsonl"}, "there is no file rows.jsonl"),
    ({"dataset": iter([1])}, "Make a list of it"),
    ({"eval_dataset": 5}, "eval_dataset got int"),
    ({"resume": "yes"}, "'auto': a run with the same settings that did not end is continued"),
    ({"model": torch.nn.Identity()}, "got model= without tokenizer="),
]


@pytest.mark.parametrize(("options", "words"), TRAINERS, ids=name)
def test_what_a_trainer_refuses(options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TurnwiseError) as caught:
        Trainer(**{"environment": Good, **options}).fit()
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []  # no folder is left behind


def test_a_dict_and_a_file_are_settings_too(tmp_path):
    (tmp_path / "run.yaml").write_text("training:\n  batch_size: 7\n")
    for config in ({"training": {"batch_size": 7}}, tmp_path / "run.yaml"):
        for make in (Trainer, create_trainer):
            assert make(config, Good).config.training.batch_size == 7


@pytest.mark.parametrize("ids", [[], [0, 0, 0]])
def test_a_tokenizer_that_turns_text_into_nothing(ids):
    with pytest.raises(ConfigError, match=r"my-model.*to unknown tokens or to none"):
        Trainer(environment=Good, model=torch.nn.Identity(), tokenizer=NotReady(ids)).fit()


# ---- settings, each blamed on the place where it stands ----


def test_a_bad_override_is_not_blamed_on_the_file(tmp_path):
    (tmp_path / "run.yaml").write_text("training:\n  batch_size: 4\n")
    with pytest.raises(ConfigError) as caught:
        ConfigStore.load(tmp_path / "run.yaml", ["training.batch_size=abc"])
    assert "training.batch_size got 'abc'" in str(caught.value)
    assert "run.yaml" not in str(caught.value)


def test_a_bad_file_is_blamed_with_its_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(
        "training:\n  batch_size: 4\n  learning_rte: 1\ninference:\n  max_tokens: abc\n"
    )
    with pytest.raises(ConfigError) as caught:
        ConfigStore.load("run.yaml", ["training.gamma=0.9"])
    first, second = sorted(str(caught.value).splitlines())
    assert first.startswith("run.yaml, line 3: there is no setting 'training.learning_rte'")
    assert second.startswith("run.yaml, line 5: inference.max_tokens got 'abc'")


# ---- time ----


def test_what_takes_too_long_names_the_setting_that_gives_it_more_time():
    clock = Clock()

    class Slow(Good):
        quick = False

        async def step(self, action):
            clock.now += 1.0
            await asyncio.sleep(60)

    async def judge(trajectory):
        await asyncio.sleep(60)

    # Each has one short limit: what comes before takes its time on a busy machine.
    assert "limits.step_timeout" in failure(Slow, limits=EpisodeLimits(step_timeout=0.05))[0]
    limits = EpisodeLimits(reward_timeout=0.05)
    assert "limits.reward_timeout" in failure(reward_fn=judge, limits=limits)[0]
    collector = EpisodeCollector(
        ScriptedEngine(TOKENIZER, "go"), Slow, num_retries=0, limits=EpisodeLimits(max_seconds=0.5)
    )
    played = run_in_virtual_time(collector.collect(1), clock)
    (result,) = [*played, *played.dropped]
    assert "limits.max_seconds" in result.error
