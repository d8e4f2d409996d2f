"""Conversations, the harness and the manager: the names that people know, over the same episode."""

import pytest

from episode.worlds import Counting, Recording, tokenizer
from turnwise import (
    ConfigError,
    CustomGameEnvironment,
    EnvironmentFault,
    EnvironmentStepTool,
    EpisodeStatus,
    JSONActionParser,
    MultiTurnChatHarness,
    MultiTurnInferenceEngine,
    MultiTurnManager,
    RewardManager,
    ScriptedEngine,
    ToolRegistry,
    Trajectory,
    tool,
)
from turnwise.tools import ToolCall

PARSER = JSONActionParser()


@tool(timeout=None)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def call(name, **arguments):
    return PARSER.render(ToolCall(name, arguments))


def say(*turns):
    left = iter(turns)
    return Recording(lambda text: next(left))


def test_a_conversation_by_hand():
    engine = say("Hello!", "Fine.")
    talk = MultiTurnInferenceEngine(engine, max_turns=2, system_prompt="Be kind.")
    talk.start_conversation("Hi.")
    assert talk.step(max_tokens=64) == "Hello!"
    talk.add_message("How are you?")
    assert talk.step() == "Fine."
    assert engine.asked[0].max_tokens == 64
    assert talk.format_conversation() == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nHow are you?<|im_end|>\n"
        "<|im_start|>assistant\nFine.<|im_end|>"
    )
    assert [message["role"] for message in talk.messages[1:]] == ["user", "assistant"] * 2
    # The second prompt continues the first one, token by token.
    first, second = engine.asked
    assert list(second.prompt_ids[: len(first.prompt_ids)]) == list(first.prompt_ids)
    assert first.session == second.session
    talk.close()
    assert engine.ended == [first.session]


def test_a_conversation_says_what_is_to_be_done_first():
    talk = MultiTurnInferenceEngine(say(*"abcdef"), max_turns=1)
    with pytest.raises(ConfigError, match="start_conversation"):
        talk.step()
    talk.start_conversation("Hi.")
    with pytest.raises(ConfigError, match="the model's turn"):
        talk.add_message("again")
    talk.step()
    with pytest.raises(ConfigError, match="add_message"):
        talk.step()
    talk.add_message("more")
    with pytest.raises(ConfigError, match="max_turns=1"):
        talk.step()


def test_tools_in_a_conversation():
    manager = MultiTurnManager(ToolRegistry([add]), PARSER)
    engine = say(call("add", a=20, b=3), "It is 23.")
    talk = MultiTurnInferenceEngine(engine, tool_manager=manager, enable_tools=True)
    talk.start_conversation("What is 20 + 3?")
    talk.step()
    assert talk.messages[-1] == {"role": "tool", "name": "add", "content": "23"}
    assert talk.step() == "It is 23."


def test_an_episode_is_the_list_of_responses_and_the_summary():
    environment = Counting()
    talk = MultiTurnInferenceEngine(say("a", "b", "c"))
    report = talk.run_episode(environment, initial_prompt="Count.", max_turns=5)
    assert report == ["a", "b", "c"]
    assert (report[0], report[-1], len(report), list(report)) == ("a", "c", 3, ["a", "b", "c"])
    assert report.num_turns == report["num_turns"] == 3
    assert report.status is EpisodeStatus.DONE
    assert report.total_reward == 6.0
    assert environment.heard == ["a", "b", "c"]
    assert report.result.messages[1]["content"].startswith("Count.\n\nBegin")
    with pytest.raises(KeyError, match="tokes"):
        report["tokes"]
    with pytest.raises(AttributeError):
        report.nothing  # noqa: B018 - the look-up is the test


def test_an_episode_with_tools_counts_them():
    manager = MultiTurnManager(ToolRegistry([EnvironmentStepTool(), add]), PARSER)
    turns = [call("add", a=1, b=1), *(call("environment_step", action="x") for _ in range(3))]
    talk = MultiTurnInferenceEngine(say(*turns), tool_manager=manager, enable_tools=True)
    summary = talk.run_episode(Counting(), "Count.")
    assert summary.tool_calls == {"environment_step": 3, "add": 1}
    assert summary.num_turns == len(summary) == 4
    assert summary.total_reward == 6.0


def test_the_manager_carries_out_calls():
    manager = MultiTurnManager(ToolRegistry([add]), PARSER)
    turn = manager.step(f"Let me see. {call('add', a=1, b=2)}", "What is 1 + 2?")
    assert turn.tool_call == ToolCall("add", {"a": 1, "b": 2}, 3, True)
    assert (turn.observation, turn.done) == ("3", False)
    turn = manager.step('{"tool": "add", "arg')
    assert turn.tool_call.success is False
    assert "could not be read" in turn.tool_call.result
    turn = manager.step(call("subtract", a=1))
    assert (turn.tool_call.success, turn.tool_results[0].failure) == (False, "unknown_tool")
    summary = manager.get_episode_summary()
    assert summary.num_turns == 3
    assert summary.tool_calls == {"add": 1, "subtract": 1}
    assert summary.failures == {"malformed_call": 1, "unknown_tool": 1}
    assert len(manager.turns) == 3
    manager.reset()
    assert manager.get_episode_summary().num_turns == 0


def test_the_manager_steps_in_its_environment():
    environment = Counting()
    manager = MultiTurnManager(ToolRegistry(), "json", environment)
    turn = manager.step("just words", environment.reset())
    assert turn.tool_call.name == "environment_step"
    assert turn.tool_call.result == turn.observation == "That was 1."
    assert turn.observation_before.startswith("Begin")
    assert [manager.step("x").done for _ in range(2)] == [False, True]
    assert manager.summary.total_reward == 6.0
    assert manager.summary.statuses == {EpisodeStatus.DONE: 1}


def test_the_manager_lets_a_broken_environment_be_seen():
    class Bad(Counting):
        def step(self, action):
            return "no tuple"

    manager = MultiTurnManager(ToolRegistry(), "json", Bad())
    manager.environment.reset()
    with pytest.raises(EnvironmentFault, match="expected 4"):
        manager.step("x")


def test_the_harness_gives_trajectories():
    environment = CustomGameEnvironment({"max_steps": 3})
    harness = MultiTurnChatHarness(
        ScriptedEngine(tokenizer(), lambda text: "move north"), environment, max_turns=2
    )
    trajectory = harness.run_episode("Explore.")
    assert isinstance(trajectory, Trajectory)
    assert trajectory["prompts"] == ["Explore."]
    assert trajectory["states"][0] == CustomGameEnvironment({"max_steps": 3}).reset()
    assert trajectory["num_turns"] == len(trajectory["actions"]) == 2
    assert trajectory["total_reward"] == sum(trajectory["rewards"])
    assert environment.step_count == 2
    batch = harness.run_batch(["One.", "Two.", "Three."])
    assert [trajectory["prompts"] for trajectory in batch] == [["One."], ["Two."], ["Three."]]
    assert environment.step_count == 2  # each episode has its own
    assert RewardManager(environment).compute_batch_rewards(batch).shape == (3,)


def test_the_harness_takes_its_engine_under_either_name():
    engine, environment = ScriptedEngine(tokenizer(), str.upper), CustomGameEnvironment()
    for name in ("inference_engine", "engine"):
        harness = MultiTurnChatHarness(**{name: engine}, environment=environment)
        assert harness.inference_engine is engine
    for arguments in ({}, {"engine": engine}, {"inference_engine": engine, "engine": engine}):
        with pytest.raises(ConfigError, match="one engine and one environment"):
            MultiTurnChatHarness(**arguments)
