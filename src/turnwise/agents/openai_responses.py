"""OpenAI's `/v1/responses`: requests read, replies and events written."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, PrivateAttr

from turnwise.agents.live import EventWriter
from turnwise.agents.openai_chat import error_body as error_body
from turnwise.agents.requests import (
    ApiError,
    ChatReply,
    ChatRequest,
    Shape,
    pieces,
    read_sampling,
    read_text,
    tool_choice,
    unsupported,
    validated,
)
from turnwise.chat import Message

PATH = "/responses"
_IGNORED = (
    "include", "max_tool_calls", "prompt_cache_key", "prompt_cache_retention", "reasoning",
    "safety_identifier", "service_tier", "store", "stream_options", "top_logprobs", "truncation",
    "user",
)  # fmt: skip
_REFUSED = ("background", "conversation", "prompt")


class ResponsesBody(Shape):
    """The fields of a request that have an effect."""

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
    metadata: Any = None

    _name: str = PrivateAttr(default_factory=lambda: secrets.token_hex(12))
    _created: int = PrivateAttr(default_factory=lambda: int(time.time()))
    """Of the response: its id and those of its items are made of the name."""


def parse(data: Any, earlier: Mapping[str, Sequence[Message]]) -> tuple[ResponsesBody, ChatRequest]:
    """Read a request; `earlier` has the conversations of responses by their ids."""
    fields = validated(ResponsesBody, data, ignored=_IGNORED, refused=_REFUSED)
    if ((fields.text or {}).get("format") or {}).get("type", "text") != "text":
        raise unsupported("text.format")
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
    tools = [_tool(tool) for tool in fields.tools or ()]
    return fields, ChatRequest(
        messages,
        tools,
        **tool_choice(fields.tool_choice, tools),
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        max_tokens=fields.max_output_tokens,
        sampling=read_sampling(fields),
        response_id=f"resp_{fields._name}",
        has_instructions=bool(fields.instructions),
    )


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise ApiError(
            f"a tool of type {tool.get('type')!r} is not supported; expected function",
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
        is_reply = kind in ("reasoning", "function_call") or (
            kind == "message" and item.get("role") == "assistant"
        )
        if not is_reply:
            turn = None
        elif turn is None:
            turn = {"role": "assistant", "content": ""}
            messages.append(turn)
        if kind == "message" and turn is not None:
            turn["content"] += read_text(item.get("content"), f"{param}.content")
        elif kind == "reasoning" and turn is not None:
            turn["reasoning_content"] = read_text(item.get("content"), f"{param}.content")
        elif kind == "function_call" and turn is not None:
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            turn.setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = read_text(item.get("output"), f"{param}.output")
            messages.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
            )
        elif kind == "message" and item.get("role") in ("user", "system", "developer"):
            role = "user" if item["role"] == "user" else "system"
            content = read_text(item.get("content"), f"{param}.content")
            messages.append({"role": role, "content": content})
        else:
            raise ApiError(
                f"{param} got {kind!r} of the role {item.get('role')!r}; expected a message, "
                "reasoning, function_call or function_call_output",
                param=param,
            )
    return messages


def body(model: str, replies: Sequence[ChatReply], fields: ResponsesBody) -> dict[str, Any]:
    reply = replies[0]
    is_cut = reply.finish_reason == "length"
    return {
        "id": f"resp_{fields._name}",
        "object": "response",
        "created_at": fields._created,
        "status": "incomplete" if is_cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "model": model,
        "output": [_item(fields, kind, content) for kind, content in reply.blocks()],
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


def _item(fields: ResponsesBody, kind: str, content: Any) -> dict[str, Any]:
    """Return a block of a reply, as `ChatReply.blocks` yields it."""
    if kind == "call":
        name = f"fc_{content['id'].removeprefix('call_')}"
        called = {"type": "function_call", "call_id": content["id"], **content["function"]}
        return {"id": name, **called, "status": "completed"}
    if kind == "thought":
        part: dict[str, Any] = {"type": "reasoning_text", "text": content}
        return {"id": f"rs_{fields._name}", "type": "reasoning", "summary": [], "content": [part]}
    part = {"type": "output_text", "text": content, "annotations": [], "logprobs": []}
    return {
        "id": f"msg_{fields._name}",
        "type": "message",
        "role": "assistant",
        "content": [part],
        "status": "completed",
    }


class Events(EventWriter):
    """A response as server-sent events."""

    def __init__(self, model: str, fields: ResponsesBody) -> None:
        super().__init__()
        self._model, self._fields = model, fields
        self._head = body(model, [ChatReply({}, "stop", 0, 0)], fields)
        self._num_events = 0

    def begin(self, num_prompt_tokens: int, reply: ChatReply | None) -> str:
        begun = {**self._head, "status": "in_progress", "output": [], "usage": None}
        created = self._event("response.created", response=begun)
        return created + self._event("response.in_progress", response=begun)

    def open(self, kind: str) -> str:
        item = _item(self._fields, kind, "")
        begun = {**item, "status": "in_progress", "content": []}
        added = self._event("response.output_item.added", output_index=self._index, item=begun)
        return added + self._part_event("response.content_part.added", item)

    def piece(self, kind: str, text: str) -> str:
        return self._text_event(kind, "delta", delta=text)

    def close(self, kind: str, text: str) -> str:
        item = _item(self._fields, kind, text)
        written = self._text_event(kind, "done", text=text)
        written += self._part_event("response.content_part.done", item)
        return written + self._event(
            "response.output_item.done", output_index=self._index, item=item
        )

    def call(self, number: int, call: Mapping[str, Any]) -> str:
        item = _item(self._fields, "call", call)
        at = {"output_index": self._index, "item_id": item["id"]}
        begun = {**item, "status": "in_progress", "arguments": ""}
        name = "response.function_call_arguments"
        return "".join([
            self._event("response.output_item.added", output_index=self._index, item=begun),
            *(self._event(f"{name}.delta", **at, delta=text) for text in pieces(item["arguments"])),
            self._event(f"{name}.done", **at, name=item["name"], arguments=item["arguments"]),
            self._event("response.output_item.done", output_index=self._index, item=item),
        ])  # fmt: skip

    def finish(self, replies: Sequence[ChatReply]) -> str:
        whole = body(self._model, replies, self._fields)
        is_cut = whole["status"] == "incomplete"
        return self._event(
            "response.incomplete" if is_cut else "response.completed", response=whole
        )

    def failed(self, error: ApiError) -> str:
        reason = {"code": error.code or "server_error", "message": error.message}
        failed = {**self._head, "status": "failed", "output": [], "error": reason}
        return self._event("response.failed", response=failed)

    @property
    def _index(self) -> int:
        return len(self.blocks) - 1

    def _event(self, kind: str, **data: Any) -> str:
        event = {"type": kind, "sequence_number": self._num_events, **data}
        self._num_events += 1
        return f"event: {kind}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"

    def _part_event(self, kind: str, item: Mapping[str, Any]) -> str:
        part = {"part": item["content"][0], "content_index": 0}
        return self._event(kind, output_index=self._index, item_id=item["id"], **part)

    def _text_event(self, kind: str, name: str, **data: Any) -> str:
        item = _item(self._fields, kind, "")
        at = {"output_index": self._index, "item_id": item["id"], "content_index": 0}
        if kind == "thought":
            return self._event(f"response.reasoning_text.{name}", **at, **data)
        return self._event(f"response.output_text.{name}", **at, **data, logprobs=[])
