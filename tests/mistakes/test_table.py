"""The table of mistakes: what a user does wrong, and the whole text that says so."""

import asyncio
import json
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
from turnwise.models import check_tokenizer
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


FOUR = "expected 4 values. Return (observation, reward, done, info)."
NUMBER = "expected a number. Convert it with float(...)."
FINITE = (
    "expected a finite number. Look for a division by zero or a logarithm of zero in the reward."
)
FLAG = (
    "expected True or False. Return (observation, reward, done, info) in this order, done a bool."
)
WORDS = "expected str. Describe the state in words, or return json.dumps(...) of it."

STEPS = [
    (("", 1.0), f"returned 2 values, {FOUR}"),
    (("", 1.0, True), f"returned 3 values, {FOUR}"),
    (
        ("", 1.0, True, False, {}),
        f"returned 5 values, {FOUR} For a Gymnasium environment use "
        "turnwise.env.GymnasiumEnvironment.",
    ),
    ((1,) * 6, f"returned 6 values, {FOUR}"),
    (None, f"returned None, {FOUR} Does every path end in a return?"),
    ("abcd", f"returned type str, {FOUR}"),
    (("", "1.0", True, {}), f"returned a reward of type str, {NUMBER}"),
    (("", "good", True, {}), f"returned a reward of type str, {NUMBER}"),
    (("", [1.0], True, {}), f"returned a reward of type list, {NUMBER}"),
    (("", np.array([1.0, 2.0]), True, {}), f"returned a reward of type ndarray, {NUMBER}"),
    (
        ("", None, True, {}),
        "returned a reward of None, expected a number. Return 0.0 where nothing was earned.",
    ),
    (("", math.nan, True, {}), f"returned the reward nan, {FINITE}"),
    (("", np.float32("inf"), True, {}), f"returned the reward inf, {FINITE}"),
    (("", 1.0, "yes", {}), f"returned done='yes', {FLAG}"),
    (("", True, 0.5, {}), f"returned done=0.5, {FLAG}"),
    (("", 1.0, True, "x"), "returned info of type str, expected a dict. Return {} for none."),
    (({"a": 1}, 1.0, True, {}), f"returned an observation of type dict, {WORDS}"),
]
RESETS = [
    (
        None,
        "returned an observation of None, expected str. Return what the agent reads next, "
        '"" if there is nothing.',
    ),
    (("hi", {}), "returned an observation of type tuple, expected str. Return the observation "
     "alone, without an info."),
    (3, f"returned an observation of type int, {WORDS}"),
]  # fmt: skip


def name(value):
    """The name of a case: an object's address would be another one in each process."""
    return value[:50] if isinstance(value, str) else type(value).__name__


@pytest.mark.parametrize(("value", "text"), STEPS, ids=name)
def test_what_step_may_not_return(value, text):
    error, place = failure(maze("step", value))
    assert error == f"Maze.step() {text}"
    assert re.fullmatch(r'  File ".*test_table.py", line \d+, in now', place)  # the user's method


@pytest.mark.parametrize(("value", "text"), RESETS, ids=name)
def test_what_reset_may_not_return(value, text):
    assert failure(maze("reset", value))[0] == f"Maze.reset() {text}"


def test_a_call_that_was_not_awaited():
    class Maze(Good):
        async def step(self, action):
            self.late = asyncio.sleep(0, 1.0)
            return "", self.late, True, {}

        def close(self):
            self.late.close()

    assert failure(Maze)[0] == (
        "Maze.step() returned a reward of type coroutine, expected a number. "
        "Put await before the call that makes it."
    )


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.int64(1)])
def test_what_is_a_number_all_the_same(reward):
    assert failure(maze("step", ("", reward, True, {}))) == (None, None)
    assert failure(reward_fn=lambda trajectory: reward) == (None, None)


FLOATS = "expected a float, one float per turn, or a dict of named floats."
REWARDS = [
    ("1.0", f"returned type str, {FLOATS} Convert it with float(...)."),
    (None, f"returned None, {FLOATS} Does every path end in a return?"),
    (
        (1.0, {}),
        f"returned type dict, {FLOATS} Return the dict alone, without a number before it.",
    ),
    (
        math.nan,
        "the reward is nan, expected a finite number that fits in float32. Look for a division by "
        "zero or a logarithm of zero; raise an error for an episode that cannot be judged.",
    ),
    (
        [1.0, 2.0],
        "got 2 rewards for an episode of 1 turns. Return one float per turn, or a single float for "
        "the whole episode.",
    ),
    (
        {},
        "returned an empty dict, expected named floats such as {'rule': 1.0}. Return 0.0 where "
        "nothing was earned.",
    ),
]


@pytest.mark.parametrize(("value", "text"), REWARDS, ids=name)
def test_what_a_reward_function_may_not_return(value, text):
    def score(trajectory):
        return value

    error, place = failure(reward_fn=score)
    assert error == f"reward function 'score': {text}"
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
    assert (line, last) == (
        "    return trajectory.rewards[99]",
        "IndexError: list index out of range",
    )
    error, place = failure(Task)
    assert error == (
        "TypeError: 'NoneType' object is not subscriptable. self.task is None, since there is no "
        "dataset. Pass one, dataset=[{...}, ...] or the setting dataset.path: self.task is then "
        "the row that the episode plays."
    )
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


EXPECTED_ENV = (
    "expected a name such as 'guess-number', a class derived from turnwise.BaseEnvironment, an "
    "object of one, or a function that makes one."
)
EXPECTED_CONFIG = (
    "expected a ConfigStore, a dict of sections, or the path of a YAML file. Settings come first, "
    "then the environment: Trainer(config, MyEnvironment)."
)
EXPECTED_TOOLS = (
    "expected a list of functions or objects of turnwise.Tool, such as tools=[it]. Tools that are "
    "named by text are the setting tools: [calculator, path.py:function]."
)
EXPECTED_ROWS = (
    "expected a file (.jsonl, .json, .parquet), a list of rows, or an object with len() and rows "
    "by number."
)
EXPECTED_CURRICULUM = (
    "expected an object with the methods choose, observe, state_dict and load_state_dict, such as "
    "turnwise.Levels."
)
TRAINERS = [
    (
        {"environment": Plain},
        "environment got the class Plain, expected one derived from turnwise.BaseEnvironment. "
        "Write: class Plain(BaseEnvironment):",
    ),
    ({"environment": Plain()}, f"environment got an object of Plain, {EXPECTED_ENV}"),
    ({"environment": types.ModuleType("maze")}, f"environment got the module maze, {EXPECTED_ENV}"),
    (
        {"environment": NoStep},
        "NoStep has no method step. An environment has reset() -> str, step(action) -> "
        "(observation, reward, done, info) and get_state_description() -> str.",
    ),
    (
        {"environment": Sized},
        "Sized takes (size, colour): missing a required argument: 'size'. Set environment.params: "
        "{size: ..., colour: ...} (-p size=...), or pass an object: environment=Sized(...). An "
        "argument named config gets all settings of the environment.",
    ),
    (
        {"environment": Sized, "config": {"environment": {"params": {"siez": 2, "colour": "red"}}}},
        "environment.params has 'siez', and Sized takes (size, colour). Did you mean 'size'?",
    ),
    (
        {"environment": "guess-numbr"},
        "there is no environment 'guess-numbr'. Did you mean 'guess-number'? Your own is written "
        "path/to/file.py:ClassName, a Gymnasium one gym:CartPole-v1.",
    ),
    (
        {"reward_fn": three},
        "reward function 'three' takes (a, b, c), expected (trajectory) or (trajectory, "
        "environment): missing a required argument: 'c'. Give its other arguments a default, or "
        "bind them with functools.partial.",
    ),
    (
        {"reward_fn": "score"},
        "reward_fn got 'score', expected a function of (trajectory) or (trajectory, environment). "
        "Pass the function itself; one that is named by text is the setting reward: "
        "path.py:function.",
    ),
    (
        {"config": {"batch_size": 4}},
        "config: there is no section 'batch_size'. Did you mean 'training.batch_size'?",
    ),
    (
        {"config": {"training": {"batch_size": "abc"}}},
        "config: training.batch_size got 'abc'. Input should be a valid integer, unable to parse "
        "string as an integer.",
    ),
    ({"config": "nowhere/run.yaml"}, "there is no configuration file nowhere/run.yaml."),
    ({"config": Good}, f"config got Good, {EXPECTED_CONFIG}"),
    ({"config": ConfigStore().training}, f"config got TrainingConfig, {EXPECTED_CONFIG}"),
    (
        {"config": {"training": {"adv_estimator": "grop"}}},
        "there is no advantage estimator 'grop'. Did you mean 'grpo'? A function of your "
        "own: file.py:name.",
    ),
    (
        {"config": {"inference": {"backend": "vlm"}}},
        "config: inference.backend got 'vlm'. Input should be 'local', 'transformers', 'vllm', "
        "'sglang' or 'scripted'.",
    ),
    (
        {"config": {"training": {"warm_start": "expret"}}},
        "training.warm_start got 'expret', expected 'expert', 'random', or a JSONL file of "
        "conversations; there is no such file",
    ),
    (
        {"config": {"model": {"local_path": "/nowhere"}}},
        "model.local_path names the folder /nowhere, which does not exist. Give --model or the "
        "setting model.local_path: the folder of the model; model.model_name takes names and "
        "Hugging Face ids.",
    ),
    ({"parser": "hermess"}, "there is no parser 'hermess' for tool calls. Did you mean 'hermes'?"),
    (
        {"parser": JSONActionParser},
        "parser got the class JSONActionParser, expected a name such as 'hermes', or an object "
        "with the methods parse and render. Pass an object of it: parser=JSONActionParser().",
    ),
    (
        {"parser": three},
        "parser got an object of type function, expected a name such as 'hermes', or an object "
        "with the methods parse and render. Derive its class from turnwise.ActionParser.",
    ),
    (
        {"curriculum": [{"size": 2}]},
        f"curriculum got an object of type list, {EXPECTED_CURRICULUM} For tasks from easy to hard "
        "write curriculum=turnwise.Levels([...]).",
    ),
    (
        {"curriculum": Levels},
        f"curriculum got the class Levels, {EXPECTED_CURRICULUM} Pass an object of it: "
        "curriculum=Levels(...).",
    ),
    (
        {"curriculum": "levels"},
        f"curriculum got 'levels', {EXPECTED_CURRICULUM} It has no method choose, observe, "
        "state_dict, load_state_dict.",
    ),
    (
        {"environment": None, "environments": [{"environment": Good, "curriculum": 3}]},
        f"curriculum got 3, {EXPECTED_CURRICULUM} It has no method choose, observe, state_dict, "
        "load_state_dict.",
    ),
    (
        {"system_prompt": ["Be brief."]},
        "system_prompt got an object of type list, expected a string, which is put before the "
        "environment's own system prompt.",
    ),
    (
        {"model": "tiny", "tokenizer": TOKENIZER},
        "model got 'tiny', expected a loaded Hugging Face model, together with its tokenizer. "
        "To name a model, use the setting model.model_name, or model.local_path for a folder.",
    ),
    (
        {"tokenizer": 5},
        "tokenizer got 5, expected a Hugging Face tokenizer, or the name or folder of one. Load it "
        "with AutoTokenizer.from_pretrained(...).",
    ),
    ({"tools": 5}, f"tools got 5, {EXPECTED_TOOLS}"),
    ({"tools": "calculator"}, f"tools got 'calculator', {EXPECTED_TOOLS}"),
    (
        {"eval_dataset": 5},
        f"eval_dataset got int, {EXPECTED_ROWS} Make a list of it: list(...).",
    ),
    ({"tools": one}, f"tools got one, {EXPECTED_TOOLS}"),
    (
        {"tools": [one, one]},
        "there is already a tool 'one'. Unregister it first, or give the new one another name.",
    ),
    (
        {"limits": {"max_turns": 5}},
        "limits got dict, expected turnwise.EpisodeLimits. Write limits=EpisodeLimits(max_turns=5),"
        " or set limits.max_turns in the settings.",
    ),
    (
        {"dataset": {"prompt": "a"}},
        f"dataset got dict, {EXPECTED_ROWS} Put a single row into a list; of several splits pass "
        "one: dataset['train'].",
    ),
    (
        {"dataset": iter([1])},
        f"dataset got list_iterator, {EXPECTED_ROWS} Make a list of it: list(...).",
    ),
    (
        {"resume": "yes"},
        "resume got 'yes', expected True to continue a run, False for a new one, or 'auto': a run "
        "with the same settings that did not end is continued.",
    ),
    (
        {"model": torch.nn.Identity()},
        "got model= without tokenizer=. Pass both: the tokenizer turns text into the tokens that "
        "this model knows.",
    ),
]


@pytest.mark.parametrize(("options", "text"), TRAINERS, ids=name)
def test_what_a_trainer_refuses(options, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TurnwiseError) as caught:
        Trainer(**{"environment": Good, **options}).fit()
    assert str(caught.value) == text
    assert list(tmp_path.iterdir()) == []  # no folder is left behind


def test_a_dict_and_a_file_are_settings_too(tmp_path):
    (tmp_path / "run.yaml").write_text("training:\n  batch_size: 7\n")
    for config in ({"training": {"batch_size": 7}}, tmp_path / "run.yaml"):
        for make in (Trainer, create_trainer):
            assert make(config, Good).config.training.batch_size == 7


FILES = [
    (None, "there is no file rows.jsonl: it is not there (looked in {here})"),
    ("", "rows.jsonl is empty, expected rows with a prompt"),
    (
        '{"prompt": "a"}\n{"prompt": b}\n',
        "rows.jsonl, line 2 is not JSON: Expecting value at column 12; it begins with "
        "'{{\"prompt\": b}}'",
    ),
    (
        json.dumps({"question": "a"}),
        "rows.jsonl, line 1 has no 'prompt'. Known: question. Say which column is the prompt: "
        "the setting dataset.prompt_key, or prompt_key=...",
    ),
    ('{"prompt": "a"}\n3\n', "rows.jsonl, line 2 is 3 (int), expected a text or a dict"),
]


@pytest.mark.parametrize(("content", "text"), FILES)
def test_files_of_rows(content, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(ConfigError) as caught:
        Trainer(dataset="rows.jsonl")
    assert str(caught.value) == text.format(here=tmp_path)


@pytest.mark.parametrize(
    ("ids", "got"), [([], "no tokens"), ([0, 0, 0], "3 times the unknown token")]
)
def test_a_tokenizer_that_turns_text_into_nothing(ids, got):
    with pytest.raises(ConfigError) as caught:
        Trainer(environment=Good, model=torch.nn.Identity(), tokenizer=NotReady(ids)).fit()
    assert str(caught.value) == (
        f"the tokenizer my-model encodes 'Hello, what is 3 + 4?' to {got}, expected tokens that "
        "stand for the text. Is its vocabulary there (tokenizer.json, vocab.json, "
        "tokenizer.model)? Another one is given with tokenizer=..."
    )
    check_tokenizer(TOKENIZER)


# ---- settings, each blamed on the place where it stands ----

YAML = "training:\n  batch_size: 4\n  learning_rte: 1\ninference:\n  max_tokens: abc\n"
INTEGER = "Input should be a valid integer, unable to parse string as an integer."
OVERRIDES = [
    (
        ["training.learning_rte=1"],
        "override training.learning_rte=1: there is no setting 'training.learning_rte'. "
        "Did you mean 'learning_rate'?",
    ),
    (
        ["training.batch_size=abc"],
        f"override training.batch_size=abc: training.batch_size got 'abc'. {INTEGER}",
    ),
    (
        ["batch_size=4"],
        "cannot read the override 'batch_size=4'. Write section.name=value, for example "
        "training.batch_size=4",
    ),
]


@pytest.mark.parametrize(("overrides", "text"), OVERRIDES)
def test_a_bad_override_is_not_blamed_on_the_file(overrides, text, tmp_path):
    (tmp_path / "run.yaml").write_text("training:\n  batch_size: 4\n")
    with pytest.raises(ConfigError) as caught:
        ConfigStore.load(tmp_path / "run.yaml", overrides)
    assert str(caught.value) == text


def test_a_bad_file_is_blamed_with_its_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(YAML)
    with pytest.raises(ConfigError) as caught:
        ConfigStore.load("run.yaml", ["training.gamma=0.9"])
    assert sorted(str(caught.value).splitlines()) == [
        "run.yaml, line 3: there is no setting 'training.learning_rte'. "
        "Did you mean 'learning_rate'?",
        f"run.yaml, line 5: inference.max_tokens got 'abc'. {INTEGER}",
    ]


# ---- time ----


def test_what_takes_too_long_names_the_setting_that_gives_it_more_time():
    class Slow(Good):
        quick = False

        async def step(self, action):
            await asyncio.sleep(60)

    async def judge(trajectory):
        await asyncio.sleep(60)

    # Each has one short limit: what comes before takes its time on a busy machine.
    assert failure(Slow, limits=EpisodeLimits(step_timeout=0.05))[0] == (
        "Slow.step() took longer than 0.05 s. Make it faster, or raise limits.step_timeout."
    )
    assert failure(reward_fn=judge, limits=EpisodeLimits(reward_timeout=0.05))[0] == (
        "reward function 'judge' took longer than 0.05 s. Make it faster, or raise "
        "limits.reward_timeout."
    )
    clock = Clock()

    class Late(Slow):
        async def step(self, action):
            clock.now += 1.0
            await super().step(action)

    collector = EpisodeCollector(
        *(ScriptedEngine(TOKENIZER, "go"), Late),
        num_retries=0,
        limits=EpisodeLimits(max_seconds=0.5),
    )
    played = run_in_virtual_time(collector.collect(1), clock)
    (result,) = [*played, *played.dropped]
    assert result.error == (
        "the episode took longer than 0.5 s, and Late.step() was not done. "
        "Raise limits.max_seconds."
    )
