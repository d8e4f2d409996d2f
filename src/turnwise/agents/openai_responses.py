"""OpenAI's `/v1/responses`: requests read, replies and events written."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from turnwise.agents.openai_chat import (
    Shape,
    not_supported,
    pieces,
    sampling_of,
    text_of,
    validated,
)
from turnwise.agents.requests import ApiError, ChatReply, ChatRequest
from turnwise.chat import Message

PATH = "/responses"
_NOT_SUPPORTED = ("background", "conversation", "prompt")


class ResponsesBody(Shape):
    """The fields of a request. Those at the end are taken and have no effect here."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    text: dict[str, Any] | None = None
    stream: bool | None = None
    background: Any = None
    conversation: Any = None
    prompt: Any = None

    include: Any = None
    max_tool_calls: Any = None
    metadata: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    reasoning: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    stream_options: Any = None
    top_logprobs: Any = None
    truncation: Any = None
    user: Any = None


def parse(
    body: Mapping[str, Any], earlier: Mapping[str, Sequence[Message]]
) -> tuple[ResponsesBody, ChatRequest]:
    """Read a request; `earlier` has the conversations of responses by their ids."""
    fields = validated(ResponsesBody, body)
    for name in _NOT_SUPPORTED:
        if getattr(fields, name):
            raise not_supported(name)
    if ((fields.text or {}).get("format") or {}).get("type", "text") != "text":
        raise not_supported("text.format")
    messages: list[Message] = []
    if fields.previous_response_id is not None:
        if fields.previous_response_id not in earlier:
            raise ApiError(
                f"Previous response with id '{fields.previous_response_id}' not found.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        messages += earlier[fields.previous_response_id]
    items = fields.input
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    messages += _messages(items)
    if fields.instructions:  # those of an earlier response are not carried over
        messages.insert(0, {"role": "system", "content": fields.instructions})
    return fields, ChatRequest(
        messages,
        [_tool(tool) for tool in fields.tools or ()],
        may_call_tools=fields.tool_choice != "none",
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        max_tokens=fields.max_output_tokens,
        sampling=sampling_of(fields.temperature, fields.top_p),
    )


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise ApiError(
            f"a tool of type {tool.get('type')!r} is not supported by this server; expected "
            "function",
            code="unsupported_parameter",
            param="tools",
        )
    function = {name: tool.get(name) for name in ("name", "description", "parameters")}
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


def _messages(items: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Items as chat messages: what one response put out becomes one message of the assistant."""
    messages: list[Message] = []
    turn: dict[str, Any] | None = None
    for number, item in enumerate(items):
        kind, param = item.get("type", "message"), f"input.{number}"
        is_own = kind in ("reasoning", "function_call") or (
            kind == "message" and item.get("role") == "assistant"
        )
        if not is_own:
            turn = None
        elif turn is None:
            turn = {"role": "assistant", "content": ""}
            messages.append(turn)
        if kind == "message" and turn is not None:
            turn["content"] += text_of(item.get("content"), f"{param}.content")
        elif kind == "reasoning" and turn is not None:
            turn["reasoning_content"] = text_of(item.get("content"), f"{param}.content")
        elif kind == "function_call" and turn is not None:
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            turn.setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = text_of(item.get("output"), f"{param}.output")
            messages.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
            )
        elif kind == "message" and item.get("role") in ("user", "system", "developer"):
            role = "user" if item["role"] == "user" else "system"
            content = text_of(item.get("content"), f"{param}.content")
            messages.append({"role": role, "content": content})
        else:
            raise ApiError(
                f"{param} got an item of type {kind!r} and role {item.get('role')!r}; expected a "
                "message, reasoning, function_call or function_call_output",
                param=param,
            )
    return messages


def response(model: str, replies: Sequence[ChatReply], fields: ResponsesBody) -> dict[str, Any]:
    """The body of a response."""
    reply = replies[0]
    is_cut = reply.finish_reason == "length"
    return {
        "id": f"resp_{secrets.token_hex(12)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if is_cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "model": model,
        "output": _output(reply),
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": fields.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": fields.tool_choice or "auto",
        "tools": fields.tools or [],
        "top_p": fields.top_p,
        "truncation": "disabled",
        "usage": {
            "input_tokens": reply.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": reply.num_sampled_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.num_prompt_tokens + reply.num_sampled_tokens,
        },
        "user": None,
        "metadata": fields.metadata or {},
    }


def _output(reply: ChatReply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.thought:
        text = {"type": "reasoning_text", "text": reply.thought}
        items.append(_item("rs", {"type": "reasoning", "summary": [], "content": [text]}))
    if reply.content or not reply.calls:
        part = {"type": "output_text", "text": reply.content, "annotations": [], "logprobs": []}
        message = {"type": "message", "role": "assistant", "content": [part]}
        items.append(_item("msg", {**message, "status": "completed"}))
    for call in reply.calls:
        written = {"type": "function_call", "call_id": call["id"], **call["function"]}
        items.append(_item("fc", {**written, "status": "completed"}))
    return items


def _item(prefix: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": f"{prefix}_{secrets.token_hex(12)}", **fields}


def events(whole: Mapping[str, Any]) -> Iterator[str]:
    """A response as server-sent events."""
    numbers = iter(range(10**9))

    def event(kind: str, **data: Any) -> str:
        found = {"type": kind, "sequence_number": next(numbers), **data}
        return f"event: {kind}\ndata: {json.dumps(found, ensure_ascii=False)}\n\n"

    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty = {**item, "status": "in_progress"}
        if item["type"] == "function_call":
            yield event(
                "response.output_item.added", output_index=index, item={**empty, "arguments": ""}
            )
            for piece in pieces(item["arguments"]):
                yield event("response.function_call_arguments.delta", **at, delta=piece)
            yield event(
                "response.function_call_arguments.done",
                **at,
                name=item["name"],
                arguments=item["arguments"],
            )
        else:
            yield event(
                "response.output_item.added", output_index=index, item={**empty, "content": []}
            )
            yield from _text_events(event, item, at)
        yield event("response.output_item.done", output_index=index, item=item)
    kind = "response.incomplete" if whole["status"] == "incomplete" else "response.completed"
    yield event(kind, response=whole)


def _text_events(event: Any, item: Mapping[str, Any], at: Mapping[str, Any]) -> Iterator[str]:
    part = item["content"][0]
    is_reasoning = item["type"] == "reasoning"
    name = "response.reasoning_text" if is_reasoning else "response.output_text"
    more: dict[str, Any] = {} if is_reasoning else {"logprobs": []}
    place = {**at, "content_index": 0}
    yield event("response.content_part.added", **place, part={**part, "text": ""})
    for piece in pieces(part["text"]):
        yield event(f"{name}.delta", **place, delta=piece, **more)
    yield event(f"{name}.done", **place, text=part["text"], **more)
    yield event("response.content_part.done", **place, part=part)
