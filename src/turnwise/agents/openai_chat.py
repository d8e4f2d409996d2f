"""OpenAI's `/v1/chat/completions`: requests read, replies and events written."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from turnwise.agents.live import EventWriter
from turnwise.agents.requests import (
    ApiError,
    ChatReply,
    ChatRequest,
    Shape,
    read_sampling,
    read_text,
    stop_strings,
    tool_choice,
    unsupported,
    validated,
)
from turnwise.chat import Message

PATH = "/chat/completions"
_IGNORED = (
    "metadata", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort",
    "safety_identifier", "service_tier", "store", "user", "verbosity",
)  # fmt: skip
_REFUSED = (
    "audio", "functions", "function_call", "logit_bias", "prediction", "web_search_options",
    "frequency_penalty", "presence_penalty", "top_logprobs",
)  # fmt: skip
_ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatCompletionBody(Shape):
    """The fields of a request that have an effect."""

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    logprobs: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[Literal["text"]] | None = None
    chat_template_kwargs: dict[Literal["enable_thinking", "thinking"], bool | None] | None = None
    """As vLLM and SGLang take them; some templates have the second name for the first variable."""


def parse(data: Any, _: Mapping[str, Any]) -> tuple[ChatCompletionBody, ChatRequest]:
    """Read a request; raises ApiError with the field that is wrong."""
    fields = validated(ChatCompletionBody, data, ignored=_IGNORED, refused=_REFUSED)
    if fields.response_format and fields.response_format.get("type", "text") != "text":
        raise unsupported("response_format")
    tools = fields.tools or []
    variables = fields.chat_template_kwargs or {}
    thinks = variables.get("enable_thinking")
    request = ChatRequest(
        [_chat_message(message, number) for number, message in enumerate(fields.messages)],
        tools,
        **tool_choice(fields.tool_choice, tools),
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        num_replies=fields.n or 1,
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        stop=stop_strings(fields.stop),
        sampling=read_sampling(fields),
        seed=fields.seed,
        enable_thinking=variables.get("thinking") if thinks is None else thinks,
        wants_log_probs=bool(fields.logprobs),
    )
    return fields, request


def body(model: str, replies: Sequence[ChatReply], _: ChatCompletionBody) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": index,
                "message": {**reply.message, "content": reply.content or None, "refusal": None},
                "finish_reason": reply.finish_reason,
                "logprobs": _log_probs(reply),
            }
            for index, reply in enumerate(replies)
        ],
        "usage": _usage(replies),
        "system_fingerprint": None,
        "service_tier": None,
    }


class Events(EventWriter):
    """The same as server-sent events."""

    blocks_end = False

    def __init__(self, model: str, fields: ChatCompletionBody) -> None:
        super().__init__()
        whole = body(model, (), fields)
        names = ("id", "created", "model", "system_fingerprint")
        self._head = {**{n: whole[n] for n in names}, "object": "chat.completion.chunk"}
        self._has_usage = bool((fields.stream_options or {}).get("include_usage"))

    def begin(self, num_prompt_tokens: int, reply: ChatReply | None) -> str:
        log_probs = None if reply is None else _log_probs(reply)
        return self._choice({"role": "assistant", "content": ""}, logprobs=log_probs)

    def piece(self, kind: str, text: str) -> str:
        return self._choice({"content" if kind == "text" else "reasoning_content": text})

    def call(self, number: int, call: Mapping[str, Any]) -> str:
        function = call["function"]
        named = {**call, "index": number, "function": {**function, "arguments": ""}}
        written = {"index": number, "function": {"arguments": function["arguments"]}}
        return self._choice({"tool_calls": [named]}) + self._choice({"tool_calls": [written]})

    def end_reply(self, reply: ChatReply) -> str:
        return self._choice({}, finish_reason=reply.finish_reason)

    def finish(self, replies: Sequence[ChatReply]) -> str:
        end = "data: [DONE]\n\n"
        if self._has_usage:
            return _event({**self._head, "choices": [], "usage": _usage(replies)}) + end
        return end

    def failed(self, error: ApiError) -> str:
        return _event(error_body(error))

    def _choice(self, delta: Mapping[str, Any], **more: Any) -> str:
        common = {"index": self.index, "delta": delta, "finish_reason": None, "logprobs": None}
        no_usage = {"usage": None} if self._has_usage else {}
        return _event({**self._head, "choices": [{**common, **more}], **no_usage})


def error_body(error: ApiError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 429 else "server_error"
    if error.status == 429:
        kind = "insufficient_quota"
    return {
        "error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    }


def _chat_message(message: Mapping[str, Any], number: int) -> Message:
    """One message with its content as text; raises ApiError for what is no text."""
    role = message.get("role")
    if role not in _ROLES:
        raise ApiError(
            f"messages[{number}].role got {role!r}, expected {', '.join(_ROLES)}",
            param=f"messages.{number}.role",
        )
    kept: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": read_text(message.get("content"), f"messages.{number}.content"),
    }
    for name in ("name", "tool_call_id", "tool_calls"):
        if message.get(name):
            kept[name] = message[name]
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str) and role == "assistant":
        kept["reasoning_content"] = thought
    return kept


def _usage(replies: Sequence[ChatReply]) -> dict[str, int]:
    prompt = replies[0].num_prompt_tokens if replies else 0
    sampled = sum(reply.num_sampled_tokens for reply in replies)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _log_probs(reply: ChatReply) -> dict[str, Any] | None:
    if not reply.tokens:
        return None
    content = [
        {"token": text, "logprob": log_prob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, log_prob in zip(reply.tokens, reply.log_probs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
