"""OpenAI's `/v1/chat/completions`: requests read, replies and events written."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.agents.requests import ApiError, ChatReply, ChatRequest, Delta, Sent, tool_choice
from turnwise.chat import Message
from turnwise.errors import ConfigError
from turnwise.inference import SamplingParams

PATH = "/chat/completions"
_NOT_SUPPORTED = (
    *("audio", "functions", "function_call", "logit_bias", "prediction", "web_search_options"),
    *("frequency_penalty", "presence_penalty"),
)


class Shape(BaseModel):
    """The fields that an API knows; others are refused."""

    model_config = ConfigDict(extra="forbid")


class TemplateVariables(Shape):
    """Variables of the chat template, as vLLM and SGLang take them."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    """The same under the name that some templates have."""

    @property
    def thinks(self) -> bool | None:
        return self.thinking if self.enable_thinking is None else self.enable_thinking


class ChatCompletionBody(Shape):
    """The fields of a request. Those at the end are taken and have no effect here."""

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
    top_logprobs: int | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: TemplateVariables | None = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    logit_bias: Any = None
    prediction: Any = None
    web_search_options: Any = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None

    metadata: Any = None
    modalities: list[Literal["text"]] | None = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    user: Any = None
    verbosity: Any = None


def parse(body: Mapping[str, Any]) -> tuple[ChatCompletionBody, ChatRequest]:
    """Read a request; raises ApiError with the field that is wrong."""
    fields = validated(ChatCompletionBody, body)
    for name in _NOT_SUPPORTED:
        if getattr(fields, name):
            raise not_supported(name)
    if fields.response_format and fields.response_format.get("type", "text") != "text":
        raise not_supported("response_format")
    if fields.top_logprobs:
        raise not_supported("top_logprobs")
    tools = fields.tools or []
    request = ChatRequest(
        [chat_message(message, number) for number, message in enumerate(fields.messages)],
        tools,
        **tool_choice(fields.tool_choice, tools),
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        num_replies=fields.n or 1,
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        stop=stop_strings(fields.stop),
        sampling=sampling_of(fields.temperature, fields.top_p, fields.top_k, fields.min_p),
        seed=fields.seed,
        enable_thinking=fields.chat_template_kwargs and fields.chat_template_kwargs.thinks,
        wants_log_probs=bool(fields.logprobs),
    )
    return fields, request


def completion(model: str, replies: Sequence[ChatReply]) -> dict[str, Any]:
    """The body of a response."""
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
        "usage": usage(replies),
        "system_fingerprint": None,
        "service_tier": None,
    }


class Events:
    """The same as server-sent events, which can begin before the reply has ended."""

    def __init__(self, model: str, fields: ChatCompletionBody) -> None:
        whole = completion(model, ())
        names = ("id", "created", "model", "system_fingerprint")
        self._head = {**{n: whole[n] for n in names}, "object": "chat.completion.chunk"}
        self._has_usage = bool((fields.stream_options or {}).get("include_usage"))
        self._sent: Sent | None = None

    def delta(self, delta: Delta) -> Iterator[str]:
        if self._sent is None:
            self._sent = Sent()
            yield self._choice(0, {"role": "assistant", "content": ""})
        self._sent.add(delta)
        yield from self._texts(0, delta.thought, delta.text)

    def end(self, replies: Sequence[ChatReply]) -> Iterator[str]:
        for index, reply in enumerate(replies):
            if self._sent is None or index > 0:
                first = {"role": "assistant", "content": ""}
                yield self._choice(index, first, logprobs=_log_probs(reply))
            sent = self._sent if self._sent is not None and index == 0 else Sent()
            yield from self._texts(index, *sent.rest_of(reply))
            for number, call in enumerate(reply.calls):
                function = call["function"]
                named = {**call, "index": number, "function": {**function, "arguments": ""}}
                yield self._choice(index, {"tool_calls": [named]})
                written = {"index": number, "function": {"arguments": function["arguments"]}}
                yield self._choice(index, {"tool_calls": [written]})
            yield self._choice(index, {}, finish_reason=reply.finish_reason)
        if self._has_usage:
            yield _event({**self._head, "choices": [], "usage": usage(replies)})
        yield "data: [DONE]\n\n"

    def failed(self, error: ApiError) -> Iterator[str]:
        yield _event(error_body(error))

    def _texts(self, index: int, thought: str, text: str) -> Iterator[str]:
        if thought:
            yield self._choice(index, {"reasoning_content": thought})
        for piece in pieces(text):
            yield self._choice(index, {"content": piece})

    def _choice(self, index: int, delta: Mapping[str, Any], **more: Any) -> str:
        choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None, **more}
        no_usage = {"usage": None} if self._has_usage else {}
        return _event({**self._head, "choices": [choice], **no_usage})


def error_body(error: ApiError) -> dict[str, Any]:
    """An error as OpenAI writes it."""
    kind = "invalid_request_error" if error.status < 429 else "server_error"
    if error.status == 429:
        kind = "insufficient_quota"
    found = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return {"error": found}


# -- shared with the other APIs ------------------------------------------------------------------


def validated(shape: type[BaseModel], body: Any) -> Any:
    """A body as the fields of an API; raises ApiError with the first field that is wrong."""
    if not isinstance(body, Mapping):
        raise ApiError(f"the body is a {type(body).__name__}, expected a JSON object")
    try:
        return shape.model_validate(dict(body))
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise ApiError(
                f"Unrecognized request argument supplied: {param}",
                code="unknown_parameter",
                param=param,
            ) from None
        raise ApiError(f"{param}: {first['msg']}", param=param) from None


def not_supported(name: str) -> ApiError:
    """The error for a field that has no meaning here."""
    return ApiError(
        f"Unsupported parameter: '{name}' is not supported by this server. Leave it out.",
        code="unsupported_parameter",
        param=name,
    )


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings from one, several or none."""
    texts = [stop] if isinstance(stop, str) else stop or ()
    return tuple(text for text in texts if text)


def sampling_of(
    temperature: float | None,
    top_p: float | None,
    top_k: int | None = None,
    min_p: float | None = None,
) -> SamplingParams | None:
    """Sampling parameters, if a request has any."""
    given = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen.get("top_k") == -1:  # vLLM's word for all
        chosen["top_k"] = 0
    try:
        return SamplingParams(**chosen) if chosen else None  # type: ignore[arg-type]
    except ConfigError as error:
        raise ApiError(str(error)) from error


def chat_message(message: Mapping[str, Any], number: int) -> Message:
    """One message with its content as text; raises ApiError for what is no text."""
    role = message.get("role")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise ApiError(
            f"messages[{number}].role got {role!r}, expected system, developer, user, assistant or "
            "tool",
            param=f"messages.{number}.role",
        )
    kept: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": text_of(message.get("content"), f"messages.{number}.content"),
    }
    for name in ("name", "tool_call_id", "tool_calls"):
        if message.get(name):
            kept[name] = message[name]
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str) and role == "assistant":
        kept["reasoning_content"] = thought
    return kept


def text_of(content: Any, param: str) -> str:
    """A content as text: a string, or parts that are texts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise ApiError(f"{param} got a {type(content).__name__}, expected text", param=param)
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ApiError(
                f"{param} has a part of type {kind!r}; this model takes text only", param=param
            )
        texts.append(text)
    return "".join(texts)


def usage(replies: Sequence[ChatReply]) -> dict[str, int]:
    """Tokens of a response, as OpenAI counts them."""
    prompt = replies[0].num_prompt_tokens if replies else 0
    sampled = sum(reply.num_sampled_tokens for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def pieces(text: str, size: int = 64) -> Iterator[str]:
    """A text in pieces, as a stream brings it."""
    return (text[start : start + size] for start in range(0, len(text), size))


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
