"""Which tools a reply may, must or must not call: `tool_choice` of the three APIs."""

import asyncio
import dataclasses
import json

import pytest
import torch

from agents.serving import CALL, LOOK, QUESTION, ask, joined, make_session, serving
from chat.thinkers import THINKERS, thinking_format
from turnwise.agents import openai_chat
from turnwise.agents.requests import ApiError, ChatRequest, tool_choice
from turnwise.agents.session import AgentSession
from turnwise.episode import CollectorOptions
from turnwise.episode.options import make_setup
from turnwise.inference import FinishReason, create_inference_engine
from turnwise.inference.scripted import ScriptedEngine
from turnwise.learner import Learner, PolicyValueModel, PPOBatch
from turnwise.models import load_model
from turnwise.tools import ToolCall, get_parser

CHAT, RESPONSES, MESSAGES = "/chat/completions", "/responses", "/messages"
LOCK = {**LOOK, "name": "lock"}
TOOLS = [{"type": "function", "function": function} for function in (LOOK, LOCK)]
CALLS = [CALL, CALL.replace("look", "lock")]


def policy(prompt):
    """Complete a call that was begun; otherwise say something, with two calls of `lock`."""
    begun = prompt.rpartition("<|im_start|>assistant\n")[2]
    fitting = [call for call in CALLS if begun and call.startswith(begun)]
    return fitting[0].removeprefix(begun) if fitting else f"Wait. {CALLS[1]}\n{CALLS[1]}"


def body_of(path, choice=None, name=None):
    """A request with two tools and a choice among them, as an API has it."""
    if path == CHAT:
        body = {"messages": QUESTION, "tools": TOOLS}
        named = {"type": "function", "function": {"name": name}}
    elif path == RESPONSES:
        functions = [{"type": "function", **tool["function"]} for tool in TOOLS]
        body = {"input": "What is x?", "tools": functions}
        named = {"type": "function", "name": name}
    else:
        functions = [{"name": f["name"], "input_schema": f["parameters"]} for f in (LOOK, LOCK)]
        body = {"messages": QUESTION, "tools": functions, "max_tokens": 200}
        named = {"type": "tool", "name": name}
        choice = choice and {"type": {"required": "any"}.get(choice, choice)}
    choice = named if name else choice
    return {"model": "policy", **body, **({"tool_choice": choice} if choice else {})}


def called(path, found):
    """Names of the tools that a reply calls."""
    if path == CHAT:
        message = joined(found) if isinstance(found, list) else found["choices"][0]["message"]
        return [call["function"]["name"] for call in message.get("tool_calls", ())]
    if path == RESPONSES:
        found = found[-1]["response"] if isinstance(found, list) else found
        return [item["name"] for item in found["output"] if item["type"] == "function_call"]
    if isinstance(found, list):
        begun = [e["content_block"] for e in found if e["type"] == "content_block_start"]
        found = {"content": begun}
    return [block["name"] for block in found["content"] if block["type"] == "tool_use"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_reply_calls_what_the_request_asks_for(path, streams):
    with serving(make_session(policy)) as (_, session, llm):
        for choice, name, expected in (
            (None, None, ["lock", "lock"]),
            ("auto", None, ["lock", "lock"]),
            ("none", None, []),
            ("required", None, ["look"]),
            (None, "look", ["look"]),
            (None, "lock", ["lock"]),
        ):
            status, found = ask(llm, path, {**body_of(path, choice, name), "stream": streams})
            assert status == 200, found
            assert called(path, found) == expected, (choice, name)
        num_masked = [
            sum(not is_sampled for is_sampled in session.tree.stream().mask[start:end])
            for start, end in session.tree.stream().turns
        ]
        assert num_masked[:3] == [0, 0, 0]
        assert all(num_masked[3:]), "the opening of the call is not trained on"


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_one_call_at_a_time(path):
    body = body_of(path)
    if path == MESSAGES:
        body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    else:
        body["parallel_tool_calls"] = False
    with serving(make_session(policy)) as (_, _, llm):
        assert called(path, ask(llm, path, body)[1]) == ["lock"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"name": "fly"}, "tools: look, lock"),
        ({"choice": "sometimes"}, "expected auto, none, required"),
        ({"choice": "required", "tools": []}, "it has none"),
    ],
)
def test_a_choice_that_cannot_be_met_is_refused(path, changed, problem):
    changed = dict(changed)
    tools = {"tools": changed.pop("tools")} if "tools" in changed else {}
    with serving(make_session(policy)) as (_, session, llm):
        status, found = ask(llm, path, {**body_of(path, **changed), **tools})
        assert status == 400
        assert problem in found["error"]["message"]
        assert not session.tree.turns


class Stops(ScriptedEngine):
    """Ends a turn after a stop string."""

    async def sample(self, request):
        result = await super().sample(request)
        for end in range(1, len(result.ids) + 1):
            if self.tokenizer.decode(result.ids[:end]).endswith(request.stop_strings or ("\0",)):
                reason, length = FinishReason.STOP, end
                ids, log_probs = result.ids[:length], result.log_probs[:length]
                return dataclasses.replace(
                    result, ids=ids, log_probs=log_probs, finish_reason=reason
                )
        return result


@pytest.mark.parametrize("name", ["qwen3", "deepseek-r1", "glm-4.5"])
@pytest.mark.parametrize("thinks", [True, False])
def test_a_thinking_model_thinks_before_its_call(name, thinks):
    chat = thinking_format(name)
    open_tag = "" if THINKERS[name].opens else "<think>\n"
    parser = get_parser("hermes")
    call = parser.render(ToolCall("look", {"key": "x"}))

    def think(prompt):
        begun = prompt.rpartition("</think>\n\n")[2]
        if begun != prompt:
            return call.removeprefix(begun)
        return f"{open_tag}Which x?\n</think>\n\nNothing." if thinks else "Nothing."

    setup = make_setup(
        Stops(chat.tokenizer, think), CollectorOptions(chat_format=chat, parser=parser)
    )
    session = AgentSession(setup)
    (reply,) = asyncio.run(session.complete(ChatRequest(QUESTION, TOOLS, must_call=["look"])))
    assert [c["function"]["name"] for c in reply.calls] == (["look"] if thinks else [])
    if thinks:
        assert reply.thought == "Which x?"
        assert json.loads(reply.calls[0]["function"]["arguments"]) == {"key": "x"}
    assert sum(session.tree.stream().mask) == reply.num_sampled_tokens


def test_a_request_may_turn_thoughts_off_where_a_model_is_served():
    chat = thinking_format("qwen3")
    prompts = []

    def reply(prompt):
        prompts.append(prompt)
        return "42."

    setup = make_setup(Stops(chat.tokenizer, reply), CollectorOptions(chat_format=chat))
    body = {"model": "policy", "messages": QUESTION}
    wants = {**body, "chat_template_kwargs": {"enable_thinking": False}}
    served = AgentSession(setup, honours_sampling=True)
    for data in (body, {**body, "chat_template_kwargs": None}, wants):
        asyncio.run(served.complete(openai_chat.parse(data, {})[1]))
    closed = [prompt.endswith("<think>\n\n</think>\n\n") for prompt in prompts]
    assert closed == [False, False, True]
    with pytest.raises(ApiError, match="enable_thinking"):
        asyncio.run(AgentSession(setup).complete(openai_chat.parse(wants, {})[1]))


def test_the_learner_computes_the_log_probs_of_an_opened_call():
    loaded = load_model("tiny")
    engine = create_inference_engine(loaded.model, "local", tokenizer=loaded.tokenizer)
    with engine:
        session = AgentSession(make_setup(engine, CollectorOptions(parser="hermes")))
        request = ChatRequest(QUESTION, TOOLS, max_tokens=90, **tool_choice("required", TOOLS))

        async def ask_twice():
            (reply,) = await session.complete(request)
            follow = [*QUESTION, reply.message, {"role": "user", "content": "And y?"}]
            await session.complete(dataclasses.replace(request, messages=follow))
            await session.close()

        asyncio.run(ask_twice())
    stream = session.tree.stream()
    assert not stream.branches, "the second request continues the tokens of the first"
    batch = PPOBatch.from_streams([stream])
    assert batch.num_policy_tokens < sum(end - start for start, end in stream.turns)
    ours = Learner(PolicyValueModel(loaded.model, None)).score(batch).log_probs
    sampled = batch.response_mask
    torch.testing.assert_close(ours[sampled], batch.sampler_log_probs[sampled], rtol=0, atol=2e-4)
