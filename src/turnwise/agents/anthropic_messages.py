"""Anthropic's `/v1/messages`: requests read, replies and events written."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from turnwise.agents.openai_chat import (
    Shape,
    not_supported,
    pieces,
    sampling_of,
    stop_strings,
    validated,
)
from turnwise.agents.requests import ApiError, ChatReply, ChatRequest
from turnwise.chat import Message

PATH = "/messages"
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
_KINDS |= {413: "request_too_large", 429: "rate_limit_error"}


class MessagesBody(Shape):
    """The fields of a request. Those at the end are taken and have no effect here."""

    model: str
    messages: list[dict[str, Any]]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: int | None = None
    stream: bool | None = None
    mcp_servers: Any = None
    container: Any = None

    cache_control: Any = None
    context_management: Any = None
    inference_geo: Any = None
    metadata: Any = None
    output_config: Any = None
    service_tier: Any = None
    thinking: Any = None


def parse(body: Mapping[str, Any]) -> tuple[MessagesBody, ChatRequest]:
    """Read a request; raises ApiError with the field that is wrong."""
    fields = validated(MessagesBody, body)
    for name in ("mcp_servers", "container"):
        if getattr(fields, name):
            raise not_supported(name)
    messages: list[Message] = []
    if fields.system:
        messages.append({"role": "system", "content": _text(fields.system, "system")})
    for number, message in enumerate(fields.messages):
        messages += _messages(message, f"messages.{number}")
    choice = fields.tool_choice or {}
    return fields, ChatRequest(
        messages,
        [_tool(tool, number) for number, tool in enumerate(fields.tools or ())],
        may_call_tools=choice.get("type") != "none",
        parallel_tool_calls=not choice.get("disable_parallel_tool_use"),
        max_tokens=fields.max_tokens,
        stop=stop_strings(fields.stop_sequences),
        sampling=sampling_of(fields.temperature, fields.top_p, fields.top_k),
    )


def _tool(tool: Mapping[str, Any], number: int) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise ApiError(
            f"tools.{number}: a tool of type {tool.get('type')!r} runs on Anthropic's servers and "
            "is not supported by this one",
            param="tools",
        )
    function: dict[str, Any] = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _messages(message: Mapping[str, Any], param: str) -> list[Message]:
    """A message as chat messages: results of tools are messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise ApiError(f"{param}.role got {role!r}, expected user or assistant", param=param)
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list | None):
        raise ApiError(f"{param}.content got a {type(content).__name__}, expected text or blocks")
    texts: list[str] = []
    results: list[Message] = []
    kept: dict[str, Any] = {"role": role}
    for block in content or ():
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "text":
            texts.append(str(block.get("text") or ""))
        elif kind == "thinking":
            kept["reasoning_content"] = str(block.get("thinking") or "")
        elif kind == "redacted_thinking":
            continue
        elif kind == "tool_use":
            function = {
                "name": block.get("name"),
                "arguments": json.dumps(block.get("input") or {}),
            }
            call = {"id": block.get("id"), "type": "function", "function": function}
            kept.setdefault("tool_calls", []).append(call)
        elif kind == "tool_result":
            output = _text(block.get("content"), f"{param}.content")
            call_id = block.get("tool_use_id")
            results.append({"role": "tool", "tool_call_id": call_id, "content": output})
        else:
            raise ApiError(f"{param} has a block of type {kind!r}; this model takes text only")
    if results and not texts:
        return results
    return [*results, {**kept, "content": "\n\n".join(texts)}]


def _text(content: Any, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for block in content:
        if not isinstance(block, Mapping) or block.get("type") != "text":
            raise ApiError(f"{param} has a block that is no text; this model takes text only")
        texts.append(str(block.get("text") or ""))
    return "\n\n".join(texts)


def message(model: str, replies: Sequence[ChatReply]) -> dict[str, Any]:
    """The body of a response."""
    reply = replies[0]
    blocks: list[dict[str, Any]] = []
    if reply.thought:
        blocks.append({"type": "thinking", "thinking": reply.thought, "signature": ""})
    if reply.content or not reply.calls:
        blocks.append({"type": "text", "text": reply.content})
    for call in reply.calls:
        function = call["function"]
        used = {"id": call["id"], "name": function["name"]}
        blocks.append({"type": "tool_use", **used, "input": json.loads(function["arguments"])})
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": _STOP_REASONS[reply.finish_reason],
        "stop_sequence": None,
        "usage": {
            "input_tokens": reply.num_prompt_tokens,
            "output_tokens": reply.num_sampled_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


def events(whole: Mapping[str, Any]) -> Iterator[str]:
    """A response as server-sent events."""

    def event(kind: str, **data: Any) -> str:
        found = json.dumps({"type": kind, **data}, ensure_ascii=False)
        return f"event: {kind}\ndata: {found}\n\n"

    begun = {**whole, "content": [], "stop_reason": None}
    begun["usage"] = {**whole["usage"], "output_tokens": 0}
    yield event("message_start", message=begun)
    for index, block in enumerate(whole["content"]):
        empty, name, kind, text = _parts(block)
        yield event("content_block_start", index=index, content_block=empty)
        for piece in pieces(text):
            yield event("content_block_delta", index=index, delta={"type": kind, name: piece})
        yield event("content_block_stop", index=index)
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": whole["usage"]["output_tokens"]}
    yield event("message_delta", delta=ended, usage=usage)
    yield event("message_stop")


def _parts(block: Mapping[str, Any]) -> tuple[dict[str, Any], str, str, str]:
    """A block as it begins, and the field, type and text of its deltas."""
    if block["type"] == "text":
        return {**block, "text": ""}, "text", "text_delta", block["text"]
    if block["type"] == "thinking":
        return {**block, "thinking": ""}, "thinking", "thinking_delta", block["thinking"]
    text = json.dumps(block["input"], ensure_ascii=False)
    return {**block, "input": {}}, "partial_json", "input_json_delta", text


def error_body(error: ApiError) -> dict[str, Any]:
    """An error as Anthropic writes it."""
    kind = _KINDS.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": None}
