"""What a script gave, as names and hashes in the run's own files."""

import functools
import json
import random
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import SimpleNamespace

import pytest

from trainer.worlds import Echo
from turnwise import (
    CalculatorTool,
    CodeLimits,
    ConfigStore,
    EpisodeLimits,
    JSONActionParser,
    PythonCodeTool,
    Tool,
    WeightedReward,
)
from turnwise.config import RewardItem
from turnwise.data import PromptDataset
from turnwise.episode import episode_limits
from turnwise.errors import ConfigError
from turnwise.models.tiny import make_tiny_tokenizer
from turnwise.tools.by_name import parser_by_name, server_words, tools_by_name, with_variables
from turnwise.tools.mcp_source import MCPTool, MCPTools
from turnwise.trainer import recording
from turnwise.trainer.components import UserComponents
from turnwise.trainer.recording import identity, record_run, recorded
from turnwise.user_code import instance_label


def score(trajectory):
    return 1.0


class Plain(Tool):
    """Say yes."""

    def execute(self) -> str:
        return "yes"


class WithArgument(Plain):
    def __init__(self, word="no"):
        self.word = word


def names(**parts):
    return recorded(ConfigStore(), UserComponents(**parts))


def test_tools_keep_their_options_or_are_said_to_be_lost():
    tools = names(tools=[CalculatorTool(), Plain(), WithArgument("yes"), score]).tools
    assert tools[0] == "calculator"
    assert tools[1].endswith(":Plain")
    assert tools[2] == "<object>:WithArgument"  # made with an argument that nothing records
    assert tools[3].endswith(":score")
    given = PythonCodeTool(CodeLimits(seconds=2), packages=True, allow_unsafe=True)
    (entry,) = names(tools=[given]).tools
    assert (entry["limits"]["seconds"], entry["packages"]) == (2, True)
    assert entry.get("allow_unsafe", False) is not given.isolated
    if given.isolated:
        (again,) = tools_by_name([entry])
        assert again.limits == given.limits


class Sized(Echo):
    def get_prompt_prefix(self):
        return f"size {self.config.params['size']}"


def test_rewards_and_instances():
    assert names(reward_fn=functools.partial(score)).reward == "<object>:partial"
    weighted = WeightedReward({"a": (score, 2.0), "steps": (None, 1.0)})
    found = names(reward_fn=weighted).reward
    assert [(item.weight, item.name) for item in found] == [(2.0, "a"), (1.0, "steps")]
    assert isinstance(found[0], RewardItem)
    assert found[1].function is None
    environment = Sized({"size": 3})
    assert names(environment=environment).environment.params == {"size": 3}
    environment.secret = 7  # no config makes this one again
    assert names(environment=environment).environment.name == "<object>:Sized"


class Dots(JSONActionParser):
    """Nothing of its own."""


class Marked(Dots):
    def __init__(self, mark):
        self.mark = mark


def test_parsers_and_models_are_named_or_said_to_be_lost(tmp_path):
    assert names(parser=JSONActionParser()).parser == "json"
    own = names(parser=Dots()).parser
    assert own.endswith("test_recording:Dots")
    file = tmp_path / "mine.py"
    file.write_text("from turnwise import JSONActionParser\nclass Mine(JSONActionParser): ...\n")
    assert type(parser_by_name(f"{file}:Mine")).__name__ == "Mine"
    assert names(parser=Marked("!")).parser == "<object>:Marked"
    jar = CookieJar(policy=DefaultCookiePolicy(strict_domain=True))
    assert instance_label(jar) == "<object>:CookieJar"  # not the one of its constructor
    with pytest.raises(ConfigError, match="give --parser or the setting parser"):
        parser_by_name("<object>:Marked")
    with pytest.raises(ConfigError, match="expected a class derived from"):
        parser_by_name("json:dumps")
    model = names(model=SimpleNamespace()).model
    assert (model.model_name, model.local_path) == ("<object>:SimpleNamespace", None)


class Open(Echo):
    """Has whatever attribute it is asked for."""

    def __getattr__(self, name):
        return name


def test_an_instance_is_named_by_its_class():
    assert UserComponents(environment=Open()).environment_name == "Open"


def test_limits_come_back_as_they_were_given():
    for limits in (EpisodeLimits(max_turns=3, step_timeout=None), EpisodeLimits(max_turns=None)):
        again = episode_limits(names(limits=limits).validate())
        assert again == episode_limits(ConfigStore(), limits)


def test_tools_that_the_settings_name_count_by_what_they_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = ConfigStore()
    config.tools = ["mine.py:look"]
    hashes = []
    for text in ("return 1", "return 1  # the same", "return 22222"):
        (tmp_path / "mine.py").write_text(f"def look() -> int:\n    {text}\n")
        parts = UserComponents(environment=Echo).filled_from(config)
        hashes.append(identity(parts, config)["tools"])
    assert hashes[0] == hashes[1] != hashes[2]


def record(**parts):
    given = UserComponents(environment=Echo, **parts)
    return record_run(ConfigStore(), given, given.filled_from(ConfigStore()))


class Fresh(PromptDataset):
    """Other rows each time that they are read."""

    def __getitem__(self, index):
        return {"prompt": str(random.random())}


def test_rows_in_memory_are_kept_as_they_are_or_said_to_be_lost(monkeypatch):
    rows = [{"word": "épée", "path": [1, 2.5, None, True]}, {"word": "b", "path": []}]
    kept = record(dataset=rows)
    assert kept.config.dataset.path == ["<run>/dataset.jsonl"]
    lines = kept.files["dataset.jsonl"].decode().splitlines()
    assert [json.loads(line) for line in lines] == rows
    texts = record(eval_dataset=PromptDataset(["Say a.", "Say b."]))  # texts are no names of files
    assert texts.files["eval_dataset.jsonl"].startswith(b'{"prompt": "Say a."}')
    for lost, words in [
        ([{"at": (0, 1)}], "row 0 changes"),
        ([{"at": 1}, {"at": {2: 3}}], "row 1 changes"),
        ([{"at": b"picture"}], "row 0 cannot be written as JSON"),
        (Fresh(size=2), "row 0 changes"),
    ]:
        found = record(dataset=lost)
        assert found.files == {}
        assert words in found.facts["datasets"]["dataset"]["why_not_kept"]
        assert found.config.dataset.path.startswith("<object>:")
    monkeypatch.setattr(recording, "MAX_KEPT_BYTES", 10)
    facts = record(dataset=rows).facts["datasets"]["dataset"]
    assert (facts["kept"], facts["rows"]) == (False, 2)


@pytest.mark.parametrize("kind", [ConfigError, ValueError, KeyError])
def test_rows_that_raise_when_they_are_written_end_the_run(kind):
    class Broken:
        num_reads = 0

        def __len__(self):
            return 2

        def __getitem__(self, index):
            self.num_reads += index
            if self.num_reads > 1:  # the first reading is for its hash
                raise kind("the second row is broken")
            return {"prompt": str(index)}

    with pytest.raises(kind, match="the second row is broken"):
        record(dataset=Broken())


def test_rows_of_files_that_were_cut_are_not_the_rows_of_the_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "short"}\n{"prompt": "a very long one"}\n')
    whole = record(dataset=PromptDataset(file))
    assert whole.config.dataset.path == ["rows.jsonl"]  # from here: the project may be moved
    options = {"tokenizer": make_tiny_tokenizer(), "max_prompt_length": 8, "truncation": "drop"}
    cut = record(dataset=PromptDataset(file, **options))
    assert cut.files["dataset.jsonl"] == b'{"prompt": "short"}\n'


def test_servers_are_named_without_their_secrets(tmp_path, monkeypatch):
    secret = "sk-abcdefghijklmnop1234"
    source = MCPTools.stdio(
        "python",
        ["server.py", "--api-key", "hush", f"--plain={secret}"],
        env={"MODE": "fast", "SEARCH_TOKEN": "hush"},
        prefix="web_",
    )
    described = SimpleNamespace(description="", input_schema={"type": "object"})
    for name in ("find", "read"):
        described.name = name
        source._tools.append(MCPTool(source, described))
    found = names(tools=[*source.tools, CalculatorTool()])
    text = found.to_yaml()
    assert "hush" not in text
    assert secret not in text
    entry = found.tools[0]
    assert server_words(entry["mcp"]) == [
        *("python", "server.py", "--api-key", "${API_KEY}", "--plain=${SECRET}")
    ]
    assert entry["env"] == {"MODE": "fast", "SEARCH_TOKEN": "${SEARCH_TOKEN}"}
    assert (entry["prefix"], found.tools[1]) == ("web_", "calculator")
    one = names(tools=source.tools[1:]).tools
    assert one[0]["only"] == ["web_read"]
    monkeypatch.setenv("SEARCH_TOKEN", "hush")
    monkeypatch.delenv("API_KEY", raising=False)
    assert with_variables(entry["env"])["SEARCH_TOKEN"] == "hush"
    with pytest.raises(ConfigError, match="no environment variable API_KEY"):
        with_variables(entry["mcp"])


def test_the_hash_of_a_run_is_that_of_each_function_and_the_same_by_name():
    def of(**parts):
        return identity(UserComponents(**parts).filled_from(ConfigStore()), ConfigStore())

    rewards = [
        WeightedReward({"a": (lambda t: 1.0, 1.0)}),
        WeightedReward({"a": (lambda t: 2.0, 1.0)}),
        WeightedReward({"a": (lambda t: 1.0, 2.0)}),
    ]
    assert len({of(environment=Echo, reward_fn=reward)["reward"] for reward in rewards}) == 3
    assert of(environment=Echo()) == of(environment=Echo)  # recorded alike: trainer.worlds:Echo


def test_arguments_of_a_partial_are_recorded_as_params():
    config = ConfigStore.of({"environment": {"params": {"size": 5}}})
    source = functools.partial(Echo, slippery=True)
    assert recorded(config, UserComponents(source)).environment.params == {
        "slippery": True,
        "size": 5,
    }
    source = functools.partial(Echo, rng=random.Random(0))  # no YAML holds it
    assert recorded(config, UserComponents(source)).environment.params == {"size": 5}
