"""Anthropic's `/v1/messages`: requests read, replies and events written."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from turnwise.agents.live import EventWriter
from turnwise.agents.requests import (
    ApiError,
    ChatReply,
    ChatRequest,
    Shape,
    pieces,
    read_sampling,
    read_text,
    stop_strings,
    tool_choice,
    validated,
)
from turnwise.chat import Message

PATH = "/messages"
_IGNORED = (
    "cache_control", "context_management", "inference_geo", "metadata", "output_config",
    "service_tier", "thinking",
)  # fmt: skip
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class MessagesBody(Shape):
    """The fields of a request that have an effect."""

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


def parse(data: Any, _: Mapping[str, Any]) -> tuple[MessagesBody, ChatRequest]:
    """Read a request; raises ApiError with the field that is wrong."""
    fields = validated(MessagesBody, data, ignored=_IGNORED, refused=("mcp_servers", "container"))
    messages: list[Message] = []
    if fields.system:
        messages.append({"role": "system", "content": read_text(fields.system, "system", "\n\n")})
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
        sampling=read_sampling(fields),
    )


def _tool(tool: Mapping[str, Any], number: int) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise ApiError(
            f"tools.{number}: a tool of type {tool.get('type')!r} runs on Anthropic's servers only",
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
            output = read_text(block.get("content"), f"{param}.content", "\n\n")
            call_id = block.get("tool_use_id")
            results.append({"role": "tool", "tool_call_id": call_id, "content": output})
        else:
            raise ApiError(f"{param} has a block of type {kind!r}; this model takes text only")
    if results and not texts:
        return results
    return [*results, {**kept, "content": "\n\n".join(texts)}]


def body(model: str, replies: Sequence[ChatReply], _: MessagesBody) -> dict[str, Any]:
    reply = replies[0]
    blocks = [_block(kind, content) for kind, content in reply.blocks()]
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


def _block(kind: str, content: Any) -> dict[str, Any]:
    """Return a block of a reply, as `ChatReply.blocks` yields it."""
    if kind == "thought":
        return {"type": "thinking", "thinking": content, "signature": ""}
    if kind == "text":
        return {"type": "text", "text": content}
    name, arguments = content["function"]["name"], content["function"]["arguments"]
    return {"type": "tool_use", "id": content["id"], "name": name, "input": json.loads(arguments)}


class Events(EventWriter):
    """A response as server-sent events."""

    def __init__(self, model: str, fields: MessagesBody) -> None:
        super().__init__()
        self._begun_body = body(model, [ChatReply({}, "stop", 0, 0)], fields)

    def begin(self, num_prompt_tokens: int, reply: ChatReply | None) -> str:
        usage = {**self._begun_body["usage"], "input_tokens": num_prompt_tokens}
        begun = {**self._begun_body, "content": [], "stop_reason": None, "usage": usage}
        return _event("message_start", message=begun)

    def open(self, kind: str) -> str:
        return self._block_event("content_block_start", content_block=_block(kind, ""))

    def piece(self, kind: str, text: str) -> str:
        delta = {"type": "text_delta", "text": text}
        if kind == "thought":
            delta = {"type": "thinking_delta", "thinking": text}
        return self._block_event("content_block_delta", delta=delta)

    def close(self, kind: str, text: str) -> str:
        return self._block_event("content_block_stop")

    def call(self, number: int, call: Mapping[str, Any]) -> str:
        block = {**_block("call", call), "input": {}}
        written = self._block_event("content_block_start", content_block=block)
        for text in pieces(call["function"]["arguments"]):
            delta = {"type": "input_json_delta", "partial_json": text}
            written += self._block_event("content_block_delta", delta=delta)
        return written + self._block_event("content_block_stop")

    def finish(self, replies: Sequence[ChatReply]) -> str:
        ended = {"stop_reason": _STOP_REASONS[replies[0].finish_reason], "stop_sequence": None}
        usage = {"output_tokens": replies[0].num_sampled_tokens}
        return _event("message_delta", delta=ended, usage=usage) + _event("message_stop")

    def failed(self, error: ApiError) -> str:
        return _event("error", error=error_body(error)["error"])

    def _block_event(self, kind: str, **data: Any) -> str:
        return _event(kind, index=len(self.blocks) - 1, **data)


def _event(kind: str, **data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data}, ensure_ascii=False)}\n\n"


def error_body(error: ApiError) -> dict[str, Any]:
    kind = _ERRORS.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": None}
