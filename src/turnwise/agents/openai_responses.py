"""OpenAI's `/v1/responses`: requests read, replies and events written."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from turnwise.agents.requests import ApiError, ChatReply, ChatRequest, Delta, Sent, tool_choice
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
    tools = [_tool(tool) for tool in fields.tools or ()]
    return fields, ChatRequest(
        messages,
        tools,
        **tool_choice(fields.tool_choice, tools),
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
        items.append(_text_item("reasoning", reply.thought))
    if reply.content or not reply.calls:
        items.append(_text_item("message", reply.content))
    for call in reply.calls:
        written = {"type": "function_call", "call_id": call["id"], **call["function"]}
        items.append({"id": f"fc_{secrets.token_hex(12)}", **written, "status": "completed"})
    return items


def _text_item(kind: str, text: str, name: str | None = None) -> dict[str, Any]:
    """An item of type `reasoning` or `message`; `name` is its id."""
    name = name or f"{'rs' if kind == 'reasoning' else 'msg'}_{secrets.token_hex(12)}"
    if kind == "reasoning":
        part: dict[str, Any] = {"type": "reasoning_text", "text": text}
        return {"id": name, "type": kind, "summary": [], "content": [part]}
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    message = {"id": name, "type": kind, "role": "assistant", "content": [part]}
    return {**message, "status": "completed"}


class Events:
    """A response as server-sent events, which can begin before the reply has ended.

    `on_end` gets the id of the response and its reply.
    """

    def __init__(
        self, model: str, fields: ResponsesBody, on_end: Callable[[str, ChatReply], None]
    ) -> None:
        self._model, self._fields, self._on_end = model, fields, on_end
        self._head = response(model, [ChatReply({}, "stop", 0, 0)], fields)
        self._num_events = 0
        self._sent: Sent | None = None
        self._items: dict[str, str] = {}
        """The ids of the items with texts that have begun, by their types."""
        self._open: _OpenItem | None = None

    def delta(self, delta: Delta) -> Iterator[str]:
        yield from self._begin()
        if self._sent is not None:
            self._sent.add(delta)
        yield from self._add_text("reasoning", delta.thought)
        yield from self._add_text("message", delta.text)

    def end(self, replies: Sequence[ChatReply]) -> Iterator[str]:
        (reply,) = replies
        yield from self._begin()
        sent = self._sent or Sent()
        whole = response(self._model, replies, self._fields)
        whole |= {name: self._head[name] for name in ("id", "created_at")}
        rests = dict(zip(("reasoning", "message"), sent.rest_of(reply), strict=True))
        for index, item in enumerate(whole["output"]):
            if item["type"] == "function_call":
                yield from self._close()
                yield from self._call(index, item)
            else:
                yield from self._add_text(item["type"], rests[item["type"]], is_whole=True)
                item["id"] = self._items[item["type"]]
        yield from self._close()
        self._on_end(whole["id"], reply)
        is_cut = whole["status"] == "incomplete"
        yield self._event("response.incomplete" if is_cut else "response.completed", response=whole)

    def failed(self, error: ApiError) -> Iterator[str]:
        found = {"code": error.code or "server_error", "message": error.message}
        failed = {**self._head, "status": "failed", "output": [], "error": found}
        yield self._event("response.failed", response=failed)

    def _event(self, kind: str, **data: Any) -> str:
        found = {"type": kind, "sequence_number": self._num_events, **data}
        self._num_events += 1
        return f"event: {kind}\ndata: {json.dumps(found, ensure_ascii=False)}\n\n"

    def _begin(self) -> Iterator[str]:
        if self._sent is None:
            self._sent = Sent()
            begun = {**self._head, "status": "in_progress", "output": [], "usage": None}
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)

    def _add_text(self, kind: str, text: str, is_whole: bool = False) -> Iterator[str]:
        """Continue the item of this type, or begin one; only a whole item may be empty."""
        if kind not in self._items and (text or is_whole):
            yield from self._close()
            item = _text_item(kind, "")
            self._open = _OpenItem(item, len(self._items))
            self._items[kind] = item["id"]
            begun = {**item, "status": "in_progress", "content": []}
            yield self._event(
                "response.output_item.added", output_index=self._open.index, item=begun
            )
            place, part = self._open.place, item["content"][0]
            yield self._event("response.content_part.added", **place, part=part)
        # A thought may go on after its item has ended, which is in the whole response only.
        if self._open is not None and self._open.item["type"] == kind:
            self._open.text += text
            for piece in pieces(text):
                yield self._text_event("delta", delta=piece)

    def _close(self) -> Iterator[str]:
        """End the item that is open."""
        if self._open is None:
            return
        item = _text_item(self._open.item["type"], self._open.text, self._open.item["id"])
        yield self._text_event("done", text=self._open.text)
        part = item["content"][0]
        yield self._event("response.content_part.done", **self._open.place, part=part)
        yield self._event("response.output_item.done", output_index=self._open.index, item=item)
        self._open = None

    def _text_event(self, name: str, **data: Any) -> str:
        assert self._open is not None
        if self._open.item["type"] == "reasoning":
            return self._event(f"response.reasoning_text.{name}", **self._open.place, **data)
        found = {**self._open.place, **data, "logprobs": []}
        return self._event(f"response.output_text.{name}", **found)

    def _call(self, index: int, item: Mapping[str, Any]) -> Iterator[str]:
        at = {"output_index": index, "item_id": item["id"]}
        begun = {**item, "status": "in_progress", "arguments": ""}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        for piece in pieces(item["arguments"]):
            yield self._event("response.function_call_arguments.delta", **at, delta=piece)
        written = {"name": item["name"], "arguments": item["arguments"]}
        yield self._event("response.function_call_arguments.done", **at, **written)
        yield self._event("response.output_item.done", output_index=index, item=item)


@dataclass
class _OpenItem:
    """An item whose text is being written."""

    item: Mapping[str, Any]
    index: int
    text: str = ""

    @property
    def place(self) -> dict[str, Any]:
        return {"output_index": self.index, "item_id": self.item["id"], "content_index": 0}
