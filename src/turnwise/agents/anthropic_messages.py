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
from turnwise.agents.requests import ApiError, ChatReply, ChatRequest, Delta, Sent, tool_choice
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
    tools = [_tool(tool, number) for number, tool in enumerate(fields.tools or ())]
    return fields, ChatRequest(
        messages,
        tools,
        **tool_choice(choice, tools),
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
    if not isinstance(content, list):
        raise ApiError(f"{param} got a {type(content).__name__}, expected text or blocks")
    texts = []
    for block in content:
        if not isinstance(block, Mapping) or block.get("type") != "text":
            raise ApiError(f"{param} has a block that is not text; this model takes text only")
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


class Events:
    """A response as server-sent events, which can begin before the reply has ended."""

    def __init__(self, model: str) -> None:
        self._begun = message(model, [ChatReply({}, "stop", 0, 0)])
        self._sent: Sent | None = None
        self._blocks: list[str] = []
        """The types of the blocks that have begun; the last one is open."""

    def delta(self, delta: Delta) -> Iterator[str]:
        yield from self._begin(delta.num_prompt_tokens)
        if self._sent is not None:
            self._sent.add(delta)
        yield from self._add({"type": "thinking", "thinking": "", "signature": ""}, delta.thought)
        yield from self._add({"type": "text", "text": ""}, delta.text)

    def end(self, replies: Sequence[ChatReply]) -> Iterator[str]:
        (reply,) = replies
        yield from self._begin(reply.num_prompt_tokens)
        sent = self._sent or Sent()
        rests = dict(zip(("thinking", "text"), sent.rest_of(reply), strict=True))
        whole = message(self._begun["model"], replies)
        for block in whole["content"]:
            empty, text = _emptied(block)
            yield from self._add(empty, rests.get(block["type"], text), is_whole=True)
        if self._blocks:
            yield self._stop()
        ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        usage = {"output_tokens": whole["usage"]["output_tokens"]}
        yield _event("message_delta", delta=ended, usage=usage)
        yield _event("message_stop")

    def failed(self, error: ApiError) -> Iterator[str]:
        yield _event("error", error=error_body(error)["error"])

    def _begin(self, num_prompt_tokens: int) -> Iterator[str]:
        if self._sent is None:
            self._sent = Sent()
            usage = {**self._begun["usage"], "input_tokens": num_prompt_tokens}
            begun = {**self._begun, "content": [], "stop_reason": None, "usage": usage}
            yield _event("message_start", message=begun)

    def _add(self, empty: Mapping[str, Any], text: str, is_whole: bool = False) -> Iterator[str]:
        """Continue the block of this type, or begin one; only a whole block may be empty."""
        kind = empty["type"]
        if not text and not (is_whole and kind not in self._blocks):
            return
        if kind == "tool_use" or kind not in self._blocks:
            if self._blocks:
                yield self._stop()
            self._blocks.append(kind)
            index = len(self._blocks) - 1
            yield _event("content_block_start", index=index, content_block=empty)
        if kind != self._blocks[-1]:  # a block that has ended: a second thought after a text
            return
        name, delta = _DELTAS[kind]
        for piece in pieces(text):
            index = len(self._blocks) - 1
            yield _event("content_block_delta", index=index, delta={"type": delta, name: piece})

    def _stop(self) -> str:
        return _event("content_block_stop", index=len(self._blocks) - 1)


_DELTAS = {
    "text": ("text", "text_delta"),
    "thinking": ("thinking", "thinking_delta"),
    "tool_use": ("partial_json", "input_json_delta"),
}
"""The field and the type of the deltas of a block."""


def _event(kind: str, **data: Any) -> str:
    found = json.dumps({"type": kind, **data}, ensure_ascii=False)
    return f"event: {kind}\ndata: {found}\n\n"


def _emptied(block: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """A block as it begins, and what its deltas bring."""
    if block["type"] == "tool_use":
        return {**block, "input": {}}, json.dumps(block["input"], ensure_ascii=False)
    return {**block, block["type"]: ""}, block[block["type"]]


def error_body(error: ApiError) -> dict[str, Any]:
    """An error as Anthropic writes it."""
    kind = _KINDS.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": None}
