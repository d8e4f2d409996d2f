"""Tools in an episode: told to the model, called in order, fed back, limited and counted."""

import pytest

from chat.families import FAMILIES, make_format
from episode.worlds import Counting, Recording, tokenizer
from turnwise import (
    BaseEnvironment,
    EnvironmentStepTool,
    EpisodeLimits,
    EpisodeStatus,
    EpisodeSummary,
    ScriptedEngine,
    StepResult,
    ToolRegistry,
    run_episode,
    tool,
)
from turnwise.tools import ToolCall, ToolContext, ToolFailure, get_parser

JSON = get_parser("json")


def say(*turns):
    """An engine that says these, one after the other."""
    left = iter(turns)
    return Recording(lambda text: next(left))


def call(name, **arguments):
    return JSON.render(ToolCall(name, arguments))


@tool(timeout=None)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(timeout=None)
def note(text: str, context: ToolContext) -> str:
    """Write a note."""
    notes = context.store.setdefault("notes", [])
    notes.append(text)
    return f"{len(notes)} notes"


@tool(timeout=None)
def broken() -> str:
    """Break."""
    raise RuntimeError("out of order")


def test_calls_are_carried_out_and_their_results_read():
    engine = say(call("add", a=1, b=2), "It is 3.")
    result = run_episode(engine, None, prompt="What is 1 + 2?", tools=[add])
    assert result.status is EpisodeStatus.DONE
    first, last = result.turns
    assert first.calls == [ToolCall("add", {"a": 1, "b": 2}, 3, True)]
    assert first.observation == "3"
    assert (last.text, list(last.calls)) == ("It is 3.", [])
    assert result.messages[-2] == {"role": "tool", "name": "add", "content": "3"}
    told = tokenizer().decode(list(engine.asked[-1].prompt_ids))
    assert told.endswith("<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_without_tools_tells_them_in_words():
    engine = say("Nothing.")
    result = run_episode(engine, None, prompt="Hello.", tools=[add], system_prompt="Be kind.")
    system = result.messages[0]["content"]
    assert system.startswith("Be kind.\n\n")
    assert "add(a: integer, b: integer): Add two numbers." in system
    assert call("name", key="value") in system


@pytest.mark.parametrize("family", FAMILIES)
def test_results_reach_the_model_in_every_family(family):
    chat = make_format(family)
    asked = []
    turns = iter([call("add", a=1, b=2) + call("add", a=30, b=4), "Done."])

    def policy(text):
        asked.append(text)
        return next(turns)

    engine = ScriptedEngine(chat.tokenizer, policy)
    result = run_episode(engine, None, prompt="Add.", tools=[add], chat_format=chat, parser="json")
    assert result.status is EpisodeStatus.DONE, result.error
    if FAMILIES[family].takes_tools:  # the template tells them itself, and once
        assert [message["role"] for message in result.messages[:2]] == ["user", "assistant"]
        assert asked[0].count('"name": "add"') == asked[1].count('"name": "add"') == 1
    news = asked[1][len(asked[0]) :]
    assert news.index("34") > news.index("3")


def test_several_calls_in_order_share_the_episodes_store():
    engine = say("First " + call("note", text="a") + call("note", text="b"), call("note", text="c"))
    result = run_episode(engine, None, tools=[note], limits=EpisodeLimits(max_turns=2))
    texts = [r.text for turn in result.turns for r in turn.tool_results]
    assert texts == ["1 notes", "2 notes", "3 notes"]
    again = run_episode(say(call("note", text="a"), "ok"), None, tools=[note])
    assert again.turns[0].tool_results[0].text == "1 notes"


def test_the_store_is_closed_with_the_episode():
    closed = []

    class Thing:
        def close(self):
            closed.append(True)

    def keep(context: ToolContext) -> str:
        context.store["thing"] = Thing()
        return "kept"

    run_episode(say(call("keep"), "ok"), None, tools=[keep])
    assert closed == [True]


def test_what_goes_wrong_with_a_call_is_told_and_counted():
    turns = [call("add", a=1), call("bad", x=1), call("broken"), '{"tool": "add", "argum', "Bye."]
    result = run_episode(say(*turns), None, tools=[add, broken])
    assert result.status is EpisodeStatus.DONE
    told = [turn.observation for turn in result.turns]
    assert "add(a: integer, b: integer)" in told[0]
    assert "no tool 'bad'" in told[1]
    assert told[2] == "broken failed with RuntimeError: out of order"
    assert told[3].startswith("A call could not be read")
    assert result.turns[3].malformed is not None
    assert result.trajectory.infos[3]["invalid_action"] is True
    summary = EpisodeSummary.of(result)
    assert summary.tool_calls == {"add": 1, "bad": 1, "broken": 1}
    kinds = (ToolFailure.BAD_ARGUMENTS, ToolFailure.UNKNOWN_TOOL, ToolFailure.RAISED)
    assert summary.failures == {**dict.fromkeys(map(str, kinds), 1), "malformed_call": 1}
    assert (summary.num_turns, summary.num_tool_calls) == (5, 3)


@pytest.mark.parametrize("max_tool_calls", [0, 2])
def test_who_calls_again_after_the_last_call_is_cut(max_tool_calls):
    engine = say(*[call("note", text="a") + call("note", text="b")] * 9)
    limits = EpisodeLimits(max_tool_calls=max_tool_calls)
    result = run_episode(engine, None, tools=[note], limits=limits)
    assert result.status is EpisodeStatus.TRUNCATED_BY_TOOL_CALLS
    assert result.status.is_truncated
    assert result.reward is not None
    done = [len(turn.tool_results) for turn in result.turns]
    assert done == ([2, 0, 0] if max_tool_calls else [0, 0])
    told = result.turns[-2].observation
    assert told.count("No tool calls are left") == 2
    assert EpisodeSummary.of(result).num_tool_calls == max_tool_calls


def test_calls_after_the_end_are_not_carried_out():
    turn = "".join(call("environment_step", action="x") for _ in range(5))
    result = run_episode(say(turn), Counting, tools=[EnvironmentStepTool()])
    assert result.status is EpisodeStatus.DONE
    assert result.trajectory.rewards == [1.0 + 2.0 + 3.0]
    assert len(result.turns[0].tool_results) == 3


class Lamp(BaseEnvironment):
    """Its own tool ends the episode."""

    quick = True

    def reset(self):
        return "It is dark."

    def step(self, action):
        return "Nothing happens.", 0.0, False, {}

    def get_state_description(self):
        return "dark"

    @tool(timeout=None)
    def press(self) -> StepResult:
        """Press the switch."""
        return StepResult("Light!", 1.0, terminated=True, truncated=False, info={"success": True})

    @tool(timeout=None)
    def smash(self) -> str:
        """Smash it."""
        self._done = True
        return "Crash."


def test_an_environments_own_tools_join_the_others():
    result = run_episode(say(call("add", a=1, b=1), call("press")), Lamp, tools=[add])
    assert result.status is EpisodeStatus.DONE
    assert result.trajectory.rewards == [0.0, 1.0]
    assert result.trajectory.success
    by_flag = run_episode(say(call("smash")), Lamp, tools=ToolRegistry())
    assert by_flag.status is EpisodeStatus.DONE


def test_an_environment_that_breaks_in_a_tool_is_an_environments_error():
    class Bad(Counting):
        def step(self, action):
            raise ValueError("broken world")

    turn = call("environment_step", action="x")
    result = run_episode(say(turn), Bad, tools=[EnvironmentStepTool()])
    assert result.status is EpisodeStatus.ENVIRONMENT_ERROR
    assert "broken world" in result.error


def test_a_tool_that_outlasts_the_episodes_patience_is_a_tools_error():
    import asyncio

    @tool(timeout=None)
    async def sleepy() -> str:
        await asyncio.Event().wait()

    result = run_episode(
        say(call("sleepy")), None, tools=[sleepy], limits=EpisodeLimits(tool_timeout=0.05)
    )
    assert result.status is EpisodeStatus.TOOL_ERROR
    assert "tool sleepy took longer" in result.error


def test_marks_that_are_special_tokens_reach_the_parser():
    from transformers import AddedToken

    from turnwise import ChatFormat
    from turnwise.models.tiny import make_tiny_tokenizer

    own = make_tiny_tokenizer()
    own.add_special_tokens({"additional_special_tokens": [AddedToken("<tool_call>", special=True)]})
    hermes = get_parser("hermes")
    turns = iter([hermes.render(ToolCall("add", {"a": 2, "b": 2})), "4"])
    engine = ScriptedEngine(own, lambda text: next(turns))
    chat = ChatFormat(own)
    result = run_episode(engine, None, tools=[add], parser="hermes", chat_format=chat, prompt="?")
    assert result.turns[0].calls[0].result == 4
    assert "<tool_call>" in result.turns[0].text
    assert "<|im_end|>" not in result.turns[0].text
