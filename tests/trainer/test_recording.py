"""What a script gave, as names and hashes in the run's own files."""

import dataclasses
import functools

from trainer.worlds import Echo
from turnwise import (
    CalculatorTool,
    CodeLimits,
    ConfigStore,
    EpisodeLimits,
    PythonCodeTool,
    Tool,
    WeightedReward,
)
from turnwise.config import RewardItem
from turnwise.tools.by_name import tools_by_name
from turnwise.trainer.assembly import UserParts
from turnwise.trainer.recording import identity, recorded
from turnwise.trainer.rollout import limits_of


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
    return recorded(ConfigStore(), UserParts(**parts))


def test_tools_keep_their_options_or_are_said_to_be_lost():
    tools = names(tools=[CalculatorTool(), Plain(), WithArgument("yes"), score]).tools
    assert tools[0] == "calculator"
    assert tools[1].endswith(":Plain")
    assert tools[2] == "<object>:WithArgument"  # made with an argument that nothing records
    assert tools[3].endswith(":score")
    given = PythonCodeTool(CodeLimits(seconds=2), allow_unsafe=True)
    found = names(tools=[given]).tools
    assert found[0]["limits"]["seconds"] == 2
    if given.isolated:
        (again,) = tools_by_name(found)
        assert again.limits == given.limits


def test_rewards_and_instances():
    assert names(reward_fn=functools.partial(score)).reward == "<object>:partial"
    weighted = WeightedReward({"a": (score, 2.0), "steps": (None, 1.0)})
    found = names(reward_fn=weighted).reward
    assert [(item.weight, item.name) for item in found] == [(2.0, "a"), (1.0, "steps")]
    assert isinstance(found[0], RewardItem)
    assert found[1].function is None
    environment = Echo({"size": 3})
    assert names(environment=environment).environment.params == {"size": 3}
    environment.secret = 7  # no config makes this one again
    assert names(environment=environment).environment.name == "<object>:Echo"


def test_limits_come_back_as_they_were_given():
    for limits in (EpisodeLimits(max_turns=3, step_timeout=None), EpisodeLimits(max_turns=None)):
        again = limits_of(names(limits=limits).validate())
        assert again.max_turns == (limits.max_turns or 2**31 - 1)
        assert dataclasses.replace(again, max_turns=limits.max_turns) == limits


def test_tools_that_the_settings_name_count_by_what_they_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = ConfigStore()
    config.tools = ["mine.py:look"]
    hashes = []
    for text in ("return 1", "return 1  # the same", "return 22222"):
        (tmp_path / "mine.py").write_text(f"def look() -> int:\n    {text}\n")
        parts = UserParts(environment=Echo).filled_from(config)
        hashes.append(identity(parts, config)["tools"])
    assert hashes[0] == hashes[1] != hashes[2]
