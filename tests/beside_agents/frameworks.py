"""Agents of frameworks, unchanged: their loop, their tools, the gateway as their model.

Each plays an episode and returns its answer, and the tokens that it counted: of prompts, of turns.
"""

import asyncio

from beside_agents.expert import QUESTION


def play_openai_agents(episode, api, streams):
    """OpenAI's Agents SDK."""
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
    usage = result.context_wrapper.usage
    return result.final_output, (usage.input_tokens, usage.output_tokens)


def play_langgraph(episode, api, streams):
    """LangGraph with langchain-openai."""
    from langchain.agents import create_agent
    from langchain_core.messages import AIMessageChunk
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
        found = [token for token, _ in agent.stream(asked, stream_mode="messages")]
        found = [token for token in found if isinstance(token, AIMessageChunk)]
        assert len(found) > 6, "each reply came in pieces"
        text = "".join(token.text for token in found)
    else:
        found = [m for m in agent.invoke(asked)["messages"] if m.type == "ai"]
        text = found[-1].text
    used = [message.usage_metadata for message in found if message.usage_metadata]
    return text, tuple(sum(u[name] for u in used) for name in ("input_tokens", "output_tokens"))


def play_pydantic_ai(episode, api, streams):
    """Pydantic AI."""
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
    return output, (usage.input_tokens, usage.output_tokens)


def play_smolagents(episode, streams):
    """smolagents, whose answer is a call of its tool `final_answer`."""
    import smolagents

    @smolagents.tool
    def look(key: str) -> str:
        """Look up a note.

        Args:
            key: Name of the note.
        """
        return episode.look(key).replace("found 42", "42 in the end")

    model = smolagents.OpenAIModel(
        model_id=episode.llm.model, api_base=episode.llm.base_url, api_key=episode.llm.api_key
    )
    agent = smolagents.ToolCallingAgent([look], model, stream_outputs=streams, verbosity_level=0)
    answer = agent.run(QUESTION, max_steps=5)
    used = agent.monitor.get_total_token_counts()
    return answer, (used.input_tokens, used.output_tokens)
