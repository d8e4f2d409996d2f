"""The SDKs of OpenAI and Anthropic read replies while they are sampled."""

import anthropic
import openai
import pytest

from beside_agents.live_engine import ANSWER, THOUGHT, live

QUESTION = [{"role": "user", "content": "What is x?"}]
THINKS = "Water or wait? Wait."


@pytest.fixture
def llm():
    with live(THOUGHT + ANSWER) as (_, _, made):
        yield made


def test_openai(llm):
    with openai.OpenAI(base_url=llm.base_url, api_key=llm.api_key) as client:
        with client.chat.completions.stream(model=llm.model, messages=QUESTION) as stream:
            pieces = [e.delta for e in stream if e.type == "content.delta"]
            message = stream.get_final_completion().choices[0].message
        assert len(pieces) > 3
        assert "".join(pieces) == message.content == ANSWER.strip()
        with client.responses.stream(model=llm.model, input="What is x?") as stream:
            pieces = [e.delta for e in stream if e.type == "response.output_text.delta"]
            response = stream.get_final_response()
        assert len(pieces) > 3
        assert "".join(pieces) == response.output_text == ANSWER.strip()
        assert response.output[0].content[0].text == THINKS


def test_anthropic(llm):
    with anthropic.Anthropic(base_url=llm.anthropic_url, api_key=llm.api_key) as client:
        body = {"model": llm.model, "messages": QUESTION, "max_tokens": 200}
        with client.messages.stream(**body) as stream:
            pieces = list(stream.text_stream)
            thinking, text = stream.get_final_message().content
        assert len(pieces) > 3
        assert "".join(pieces) == text.text == ANSWER.strip()
        assert thinking.thinking == THINKS


def test_errors_in_mid_stream():
    with live(ANSWER) as (engine, _, llm):
        engine.error = RuntimeError("the GPU is gone")
        client = openai.OpenAI(base_url=llm.base_url, api_key=llm.api_key)
        stream = client.chat.completions.create(model=llm.model, messages=QUESTION, stream=True)
        with client, pytest.raises(openai.APIError, match="the GPU is gone"):
            list(stream)
        other = anthropic.Anthropic(base_url=llm.anthropic_url, api_key=llm.api_key)
        body = {"model": llm.model, "messages": QUESTION, "max_tokens": 200, "stream": True}
        with other, pytest.raises(anthropic.APIError, match="the GPU is gone"):
            list(other.messages.create(**body))
