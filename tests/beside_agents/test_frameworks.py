"""Agents of frameworks, unchanged: their loop, their tools, the gateway as their model."""

import asyncio

import pytest

from beside_agents.expert import QUESTION


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("streams", [False, True])
def test_openai_agents(episode, api, streams):
    import openai

    import agents

    async def play():
        client = openai.AsyncOpenAI(base_url=episode.llm.base_url, api_key=episode.llm.api_key)
        kind = agents.OpenAIResponsesModel
        if api == "chat":
            kind = agents.OpenAIChatCompletionsModel
        agent = agents.Agent(
            name="Assistant",
            instructions="Use the notes.",
            model=kind(model=episode.llm.model, openai_client=client),
            model_settings=agents.ModelSettings(include_usage=True),
            tools=[agents.function_tool(episode.look)],
        )
        async with client:
            if not streams:
                return await agents.Runner.run(agent, QUESTION)
            result = agents.Runner.run_streamed(agent, QUESTION)
            async for _ in result.stream_events():
                pass
            return result

    agents.set_tracing_disabled(True)
    result = asyncio.run(play())
    assert result.final_output == "It is 42."
    used = [(r.usage.input_tokens, r.usage.output_tokens) for r in result.raw_responses]
    assert used == episode.usage
    episode.check_grown()
    episode.keep(f"openai-agents-{api}{'-stream' * streams}")


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("streams", [False, True])
def test_langgraph(episode, api, streams):
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        base_url=episode.llm.base_url,
        api_key=episode.llm.api_key,
        model=episode.llm.model,
        use_responses_api=api == "responses",
        stream_usage=True,
    )
    agent = create_agent(model, [tool(episode.look)], system_prompt="Use the notes.")
    asked = {"messages": [{"role": "user", "content": QUESTION}]}
    if streams:
        tokens = [token for token, _ in agent.stream(asked, stream_mode="messages")]
        assert len(tokens) > 6, "each call came in pieces"
        text = "".join(token.text for token in tokens if token.type == "AIMessageChunk")
        assert text.endswith("It is 42.")
    else:
        messages = agent.invoke(asked)["messages"]
        assert messages[-1].text == "It is 42."
        used = [m.usage_metadata for m in messages if m.type == "ai"]
        assert [(u["input_tokens"], u["output_tokens"]) for u in used] == episode.usage
    episode.check_grown()
    episode.keep(f"langgraph-{api}{'-stream' * streams}")


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("streams", [False, True])
def test_pydantic_ai(episode, api, streams):
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatModel
    provider = OpenAIProvider(base_url=episode.llm.base_url, api_key=episode.llm.api_key)
    agent = pydantic_ai.Agent(
        kind(episode.llm.model, provider=provider),
        instructions="Use the notes.",
        tools=[episode.look],
    )

    async def play():
        if not streams:
            result = await agent.run(QUESTION)
            return result.output, result.usage()
        async with agent.run_stream(QUESTION) as result:
            return await result.get_output(), result.usage()

    output, usage = asyncio.run(play())
    assert output == "It is 42."
    assert usage.requests == 3
    totals = tuple(map(sum, zip(*episode.usage, strict=True)))
    assert (usage.input_tokens, usage.output_tokens) == totals
    episode.check_grown()
    episode.keep(f"pydantic-ai-{api}{'-stream' * streams}")


@pytest.mark.parametrize("streams", [False, True])
def test_smolagents(episode, streams):
    """It writes its calls and results as texts of its own: each step is a branch."""
    import smolagents

    model = smolagents.OpenAIModel(
        model_id=episode.llm.model, api_base=episode.llm.base_url, api_key=episode.llm.api_key
    )

    @smolagents.tool
    def look(key: str) -> str:
        """Look up a note.

        Args:
            key: Name of the note.
        """
        return episode.look(key).replace("found 42", "42 in the end")

    agent = smolagents.ToolCallingAgent([look], model, stream_outputs=streams, verbosity_level=0)
    assert agent.run(QUESTION, max_steps=5) == "42"
    assert episode.looked == ["x", "y"]
    used = agent.monitor.get_total_token_counts()
    totals = tuple(map(sum, zip(*episode.usage, strict=True)))
    assert (used.input_tokens, used.output_tokens) == totals
    assert len(episode.session.tree.turns) == 3
    episode.keep(f"smolagents{'-stream' * streams}")
