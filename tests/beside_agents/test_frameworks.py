"""Agents of frameworks: exact tokens, also of models that think."""

import pytest

from beside_agents.frameworks import (
    play_langgraph,
    play_openai_agents,
    play_pydantic_ai,
    play_smolagents,
)

FRAMEWORKS = {
    "openai-agents": play_openai_agents,
    "langgraph": play_langgraph,
    "pydantic-ai": play_pydantic_ai,
}
framework = pytest.mark.parametrize("name", FRAMEWORKS)
both_apis = pytest.mark.parametrize("api", ["responses", "chat"])


def total(usage):
    return tuple(map(sum, zip(*usage, strict=True)))


@framework
@both_apis
@pytest.mark.parametrize("streams", [False, True])
def test_an_agent_with_a_tool(episode, name, api, streams):
    answer, used = FRAMEWORKS[name](episode, api, streams)
    assert answer.endswith("It is 42.")
    assert used == total(episode.usage)
    episode.check_grown()
    episode.keep(f"{name}-{api}{'-stream' * streams}")


@pytest.mark.parametrize("streams", [False, True])
def test_smolagents(episode, streams):
    """It writes its calls and their results as texts of its own: each step is a branch.

    Its requests have `tool_choice: required`: the engine continues the opening of a call.
    """
    answer, used = play_smolagents(episode, streams)
    assert answer == "42"
    assert episode.looked == ["x", "y"]
    turns = episode.session.tree.turns
    assert len(turns) == 3
    assert all(turn.inserted[0] == 0 for turn in turns)
    num_prompt, num_sampled = total(episode.usage)
    assert used == (num_prompt - sum(turn.inserted[1] for turn in turns), num_sampled)
    episode.keep(f"smolagents{'-stream' * streams}")


@framework
@both_apis
@pytest.mark.parametrize("thoughts", ["as_sent", "keep"])
def test_a_model_that_thinks(thinking_episode, name, api, thoughts):
    """Two clients of chat completions send turns back without their thoughts: branches, or not."""
    episode = thinking_episode(thoughts)
    answer, used = FRAMEWORKS[name](episode, api, False)
    assert answer.endswith("It is 42.")
    assert used == total(episode.usage)
    assert episode.looked == ["x", "y"]
    drops = api == "chat" and name in ("openai-agents", "langgraph")
    num_branches = len(episode.session.tree.stream().branches)
    assert num_branches == (2 if drops and thoughts == "as_sent" else 0)
