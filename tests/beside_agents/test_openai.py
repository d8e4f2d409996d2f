"""OpenAI's own SDK: chat completions and responses, at once and as a stream."""

import json

import openai
import pytest

LOOK = {
    "name": "look",
    "description": "Look up a note.",
    "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
}
TOOLS = [{"type": "function", "function": LOOK}]


@pytest.fixture
def client(episode):
    with openai.OpenAI(base_url=episode.llm.base_url, api_key=episode.llm.api_key) as made:
        yield made


def completed(client, streams, **body):
    """A completion, put together from its chunks by the SDK where it streams."""
    if not streams:
        return client.chat.completions.create(**body)
    options = {"include_usage": True}
    with client.chat.completions.stream(**body, stream_options=options) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion()


def run_tools(episode, message):
    return [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": episode.look(**json.loads(call.function.arguments)),
        }
        for call in message.tool_calls
    ]


@pytest.mark.parametrize("streams", [False, True])
def test_a_chat_with_tools(episode, client, streams):
    messages = [{"role": "user", "content": "What is x?"}]
    for number in range(6):
        found = completed(client, streams, model=episode.llm.model, messages=messages, tools=TOOLS)
        choice = found.choices[0]
        used = (found.usage.prompt_tokens, found.usage.completion_tokens)
        assert used == episode.usage[number]
        messages.append(choice.message.model_dump(exclude_none=True))
        if choice.finish_reason == "stop":
            break
        assert choice.finish_reason == "tool_calls"
        messages += run_tools(episode, choice.message)
    assert messages[-1]["content"] == "It is 42."
    episode.check_grown()
    episode.keep(f"openai-chat{'-stream' * streams}")


@pytest.mark.parametrize("streams", [False, True])
def test_several_calls_at_once(episode, client, streams):
    messages = [{"role": "user", "content": "Find both!"}]
    body = {"model": episode.llm.model, "tools": TOOLS}
    message = completed(client, streams, messages=messages, **body).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["look", "look"]
    assert len({call.id for call in message.tool_calls}) == 2
    messages += [message.model_dump(exclude_none=True), *run_tools(episode, message)]
    last = completed(client, streams, messages=messages, **body)
    assert last.choices[0].message.content == "It is 42."
    assert episode.looked == ["z", "y"]
    assert not episode.session.tree.stream().branches
    episode.keep("openai-chat-parallel")
    (one,) = (
        client.chat.completions.create(messages=messages[:1], parallel_tool_calls=False, **body)
        .choices[0]
        .message.tool_calls
    )
    assert json.loads(one.function.arguments) == {"key": "z"}


def test_two_replies_stop_strings_and_log_probs(episode, client):
    body = {
        "model": episode.llm.model,
        "messages": [{"role": "user", "content": "found 42"}],
        "logprobs": True,
    }
    found = client.chat.completions.create(n=2, **body)
    assert [choice.message.content for choice in found.choices] == ["It is 42."] * 2
    sampled = episode.engine.sampled
    for choice in found.choices:
        log_probs = [token.logprob for token in choice.logprobs.content]
        assert log_probs in [each[2] for each in sampled]
        assert "".join(t.token for t in choice.logprobs.content).startswith("It is 42.")
    assert found.usage.completion_tokens == sum(len(each[1]) for each in sampled)
    stopped = client.chat.completions.create(stop=" is", **body)
    assert stopped.choices[0].message.content == "It"
    assert stopped.choices[0].finish_reason == "stop"
    cut = client.chat.completions.create(max_completion_tokens=2, **body)
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage.completion_tokens == 2


def responded(client, streams, **body):
    if not streams:
        return client.responses.create(**body)
    with client.responses.stream(**body) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
def test_responses_with_tools(episode, client, streams, by_id):
    """The agent sends all items again, or the id of the response before."""
    body = {"model": episode.llm.model, "tools": [{"type": "function", "strict": False, **LOOK}]}
    items = [{"role": "user", "content": "What is x?"}]
    earlier = {}
    for number in range(6):
        found = responded(client, streams, input=items, **earlier, **body)
        used = (found.usage.input_tokens, found.usage.output_tokens)
        assert used == episode.usage[number]
        calls = [item for item in found.output if item.type == "function_call"]
        results = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": episode.look(**json.loads(call.arguments)),
            }
            for call in calls
        ]
        if not calls:
            break
        if by_id:
            earlier, items = {"previous_response_id": found.id}, results
        else:
            items += [item.model_dump(exclude_none=True) for item in found.output] + results
    assert found.output_text == "It is 42."
    episode.check_grown()
    episode.keep(f"openai-responses{'-by-id' * by_id}{'-stream' * streams}")


def test_the_models_are_listed(episode, client):
    assert [model.id for model in client.models.list()] == [episode.llm.model]
    assert client.models.retrieve(episode.llm.model).id == episode.llm.model


def test_errors_are_those_of_openai(make_episode):
    episode = make_episode(max_turns=1, max_tokens=400)
    body = {"model": episode.llm.model, "messages": [{"role": "user", "content": "found 42"}]}
    with openai.OpenAI(base_url=episode.llm.base_url, api_key=episode.llm.api_key) as client:
        long = [{"role": "user", "content": "found 42 " * 100}]
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(**{**body, "messages": long})
        assert raised.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError) as raised:
            client.chat.completions.create(**{**body, "model": "gpt"})
        assert raised.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.chat.completions.create(**body, extra_body={"temperature": "hot"})
        assert client.chat.completions.create(**body).choices[0].message.content == "It is 42."
        for create in (
            lambda: client.chat.completions.create(**body),
            lambda: client.chat.completions.create(**body, stream=True),
            lambda: client.responses.create(model=body["model"], input="found 42"),
        ):
            with pytest.raises(openai.RateLimitError) as raised:
                create()
            assert raised.value.code == "insufficient_quota"
        other = client.with_options(api_key="sk-other")
        with pytest.raises(openai.AuthenticationError):
            other.chat.completions.create(**body)
