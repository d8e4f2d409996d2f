"""LiteLLM's client: at once, as a stream, and asynchronously."""

import asyncio
import json

import litellm
import pytest

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look up a note.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
    },
}


def ask(body, mode):
    if mode == "plain":
        return litellm.completion(**body)
    if mode == "stream":
        chunks = list(litellm.completion(**body, stream=True))
        return litellm.stream_chunk_builder(chunks, messages=body["messages"])

    async def later():
        if mode == "async":
            return await litellm.acompletion(**body)
        chunks = [chunk async for chunk in await litellm.acompletion(**body, stream=True)]
        return litellm.stream_chunk_builder(chunks, messages=body["messages"])

    return asyncio.run(later())


@pytest.mark.parametrize("mode", ["plain", "stream", "async", "async stream"])
def test_a_chat_with_tools(episode, mode):
    messages = [{"role": "user", "content": "What is x?"}]
    body = {
        "model": f"openai/{episode.llm.model}",
        "api_base": episode.llm.base_url,
        "api_key": episode.llm.api_key,
        "tools": [TOOL],
        "messages": messages,
    }
    if "stream" in mode:
        body["stream_options"] = {"include_usage": True}
    for number in range(6):
        found = ask(body, mode)
        used = (found.usage.prompt_tokens, found.usage.completion_tokens)
        assert used == episode.usage[number]
        message = found.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        messages += [
            {
                "role": "tool",
                "tool_call_id": call.id,
                "content": episode.look(**json.loads(call.function.arguments)),
            }
            for call in message.tool_calls
        ]
    assert message.content == "It is 42."
    episode.check_grown()
    episode.keep(f"litellm-{mode.replace(' ', '-')}")
