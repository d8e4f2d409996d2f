"""Anthropic's own SDK: messages with tools, at once and as a stream."""

import anthropic
import pytest

LOOK = {
    "name": "look",
    "description": "Look up a note.",
    "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}},
}


@pytest.fixture
def client(episode):
    llm = episode.llm
    with anthropic.Anthropic(base_url=llm.anthropic_url, api_key=llm.api_key) as made:
        yield made


def ask(client, streams, body):
    if not streams:
        return client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        for _ in stream:
            pass
        return stream.get_final_message()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("question", ["What is x?", "Find both!"])
def test_messages_with_tools(episode, client, question, streams):
    messages = [{"role": "user", "content": question}]
    body = {
        "model": episode.llm.model,
        "system": "Use the notes.",
        "messages": messages,
        "tools": [LOOK],
    }
    counted = client.messages.count_tokens(**body).input_tokens
    for number in range(6):
        found = ask(client, streams, {**body, "max_tokens": 200})
        assert (found.usage.input_tokens, found.usage.output_tokens) == episode.usage[number]
        calls = [block for block in found.content if block.type == "tool_use"]
        messages.append({"role": "assistant", "content": found.content})
        if not calls:
            break
        assert found.stop_reason == "tool_use"
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": episode.look(**call.input)}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})
    assert (found.stop_reason, found.content[0].text) == ("end_turn", "It is 42.")
    assert counted == episode.usage[0][0]
    if question == "What is x?":
        episode.check_grown()
        episode.keep(f"anthropic{'-stream' * streams}")
    else:
        assert episode.looked == ["z", "y"]
        assert not episode.session.tree.stream().branches
        episode.keep(f"anthropic-parallel{'-stream' * streams}")


def test_errors_are_those_of_anthropic(make_episode):
    episode = make_episode(max_turns=1, max_tokens=400)
    messages = [{"role": "user", "content": "found 42"}]
    body = {"model": episode.llm.model, "messages": messages, "max_tokens": 200}
    llm = episode.llm
    with anthropic.Anthropic(base_url=llm.anthropic_url, api_key=llm.api_key) as client:
        long = [{"role": "user", "content": "found 42 " * 100}]
        with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
            client.messages.create(**{**body, "messages": long})
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**{**body, "model": "claude"})
        assert client.messages.create(**body).content[0].text == "It is 42."
        with pytest.raises(anthropic.RateLimitError):
            client.messages.create(**body)
        with pytest.raises(anthropic.AuthenticationError):
            client.with_options(api_key="sk-other").messages.create(**body)
