"""Whatever JSON a client sends, the answer has the shape of the API, and is never our failure."""

import json

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agents.serving import QUESTION, TOOL, ask, make_session, serving
from turnwise.agents.session import AgentSession

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "user", "tool", "look", "x", "\x00", "<|im_end|>", "🌧", "function"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("role", "content", "type", "text", "function", "name", "arguments", "id"),
                    *("tool_calls", "tool_call_id", "call_id", "parameters", "input", "output"),
                    *("thinking", "properties", "tool_use_id", "enable_thinking"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool"]),
            "content": ANYTHING,
        },
        optional={"tool_calls": ANYTHING, "tool_call_id": ANYTHING, "reasoning_content": ANYTHING},
    ),
    max_size=3,
)
ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "reasoning", "function_call", "function_call_output"])},
    optional=dict.fromkeys(("role", "content", "call_id", "name", "output"), ANYTHING),
)
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "tool_use", "tool_result", "image"])},
    optional=dict.fromkeys(("text", "thinking", "input", "id", "name", "content"), ANYTHING),
)
SPOKEN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": st.lists(BLOCKS, max_size=3)}
)
BODIES = {
    "/chat/completions": ("messages", MESSAGES | ANYTHING),
    "/responses": ("input", st.lists(ITEMS, max_size=3) | ANYTHING),
    "/messages": ("messages", st.lists(SPOKEN, max_size=3) | ANYTHING),
}
FIELDS = {
    "/chat/completions": "tools tool_choice n max_tokens stop temperature top_p top_k seed stream "
    "logprobs stream_options response_format chat_template_kwargs parallel_tool_calls",
    "/responses": "tools tool_choice instructions previous_response_id text temperature stream "
    "max_output_tokens metadata",
    "/messages": "tools tool_choice system stop_sequences temperature top_k max_tokens stream "
    "thinking",
}


@pytest.fixture(scope="module")
def llm():
    session = AgentSession(make_session()._setup, honours_sampling=True, max_conversations=4)
    with serving(session) as (_, _, made):
        yield made


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_json_has_an_answer_of_the_api(llm, path, data):
    given = {"model": "policy", "max_tokens": 9, "messages": QUESTION, "tools": [TOOL]}
    if path == "/responses":
        given = {"model": "policy", "input": "What is x?"}
    name, contents = BODIES[path]
    given[name] = data.draw(contents)
    for field in data.draw(st.lists(st.sampled_from(FIELDS[path].split()), max_size=2)):
        given[field] = data.draw(ANYTHING)
    status, answer = ask(llm, path, json.dumps(given).encode())
    assert status in (200, 400, 404), (given, answer)
    if status != 200:
        assert isinstance(answer["error"]["message"], str)
