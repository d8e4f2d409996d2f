"""Google's `generateContent`, streaming too: requests read, replies and events written.

A request becomes one of OpenAI's chat completions, which checks it.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.agents import openai_chat
from turnwise.agents.live import EventWriter
from turnwise.agents.requests import ApiError, ChatReply, ChatRequest, log_once, unsupported
from turnwise.chat import Message

PATH = "/v1beta/models/{model:path}:{method}"
COUNTED = "totalTokens"
_CONFIG = {
    "temperature": "temperature", "topP": "top_p", "topK": "top_k", "seed": "seed",
    "maxOutputTokens": "max_tokens", "stopSequences": "stop", "candidateCount": "n",
}  # fmt: skip
_ERRORS = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
}  # fmt: skip


def parse(
    data: Any, earlier: Mapping[str, Any]
) -> tuple[openai_chat.ChatCompletionBody, ChatRequest]:
    """Read a request, which has `model`, `method` and `alt` of its URL as well."""
    try:
        translated = _translated(dict(data))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ApiError(f"the body is none of generateContent: {error}") from None
    return openai_chat.parse(translated, earlier)


def _translated(data: dict[str, Any]) -> dict[str, Any]:
    """A request of Google's API as one of chat completions; unknown fields stay."""
    method, is_sse = data.pop("method"), data.pop("alt") == "sse"
    streams = method == "streamGenerateContent"
    if method not in ("generateContent", "streamGenerateContent", "countTokens"):
        raise ValueError(f"the method {method!r:.80} is not known here")
    if streams and not is_sse:
        raise ValueError("replies are streamed as server-sent events only, add ?alt=sse to the URL")
    config, choice = data.pop("generationConfig", None) or {}, data.pop("toolConfig", None) or {}
    for name in ("cachedContent", "responseMimeType"):
        if data.get(name) or config.get(name, "text/plain") != "text/plain":
            raise unsupported(name)
    messages = _messages(data.pop("systemInstruction", None) or {}, "system")
    for content in data.pop("contents"):
        messages += _messages(content, "assistant" if content.get("role") == "model" else "user")
    tools = []
    for given in data.pop("tools", None) or ():
        tools += [_tool(function) for function in given.get("functionDeclarations") or ()]
        for name in given.keys() - {"functionDeclarations"}:
            log_once(f"The gateway runs no tools: {name!r:.80} is left out of a request.")
    choice = choice.get("functionCallingConfig") or {}
    chosen: Any = {"NONE": "none", "ANY": "required"}.get(choice.get("mode", ""), "auto")
    allowed: Any = choice.get("allowedFunctionNames") or ()
    if chosen == "required" and len(allowed) == 1:
        chosen = {"type": "function", "function": {"name": allowed[0]}}
    asked = {_CONFIG[name]: value for name, value in config.items() if name in _CONFIG}
    asked |= {"messages": messages, "tools": tools, "tool_choice": chosen, "stream": streams}
    return {**data, **asked}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: function[name] for name in ("name", "description") if name in function}
    if schema := function.get("parametersJsonSchema") or function.get("parameters"):
        kept["parameters"] = _json_schema(schema)
    return {"type": "function", "function": kept}


def _json_schema(schema: Any) -> Any:
    """A schema in which the names of types are lower case, as in JSON Schema."""
    if isinstance(schema, list):
        return [_json_schema(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: value.lower() if name == "type" and isinstance(value, str) else _json_schema(value)
        for name, value in schema.items()
    }


def _messages(content: Mapping[str, Any], role: str) -> list[Message]:
    """A content as chat messages: responses of functions are messages of their own.

    Some clients leave out the ids of calls: then a call and its result have the name in common.
    """
    texts: list[str] = []
    results: list[Message] = []
    kept: dict[str, Any] = {"role": role}
    for part in content.get("parts") or ():
        if result := part.get("functionResponse"):
            output = result.get("response")
            if isinstance(output, Mapping) and [*output] == ["output"]:
                output = output["output"]
            text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
            call_id = result.get("id") or result["name"]
            results.append({"role": "tool", "tool_call_id": call_id, "content": text})
        elif call := part.get("functionCall"):
            function = {"name": call["name"], "arguments": json.dumps(call.get("args") or {})}
            written = {"id": call.get("id") or call["name"], "type": "function"}
            kept.setdefault("tool_calls", []).append({**written, "function": function})
        elif part.get("thought"):
            kept["reasoning_content"] = kept.get("reasoning_content", "") + part.get("text", "")
        elif others := part.keys() - {"text", "thoughtSignature", "thought"}:
            raise ValueError(f"it has {sorted(others)!r:.80}, and this model takes text only")
        else:
            texts.append(part.get("text") or "")
    if not texts and (results or not kept.keys() - {"role"}):
        return results
    # What was streamed in pieces is one text.
    return [*results, {**kept, "content": ("" if role == "assistant" else "\n\n").join(texts)}]


def body(
    model: str, replies: Sequence[ChatReply], _: openai_chat.ChatCompletionBody
) -> dict[str, Any]:
    candidates = [
        _candidate(index, [_part(kind, content) for kind, content in reply.blocks()], reply)
        for index, reply in enumerate(replies)
    ]
    return _response(model, secrets.token_hex(12), candidates, replies)


def _response(
    model: str, name: str, candidates: Sequence[Any], replies: Sequence[ChatReply] = ()
) -> dict[str, Any]:
    """A response, or a part of one, which has no replies to count unless it is the last."""
    found: dict[str, Any] = {"candidates": candidates, "modelVersion": model, "responseId": name}
    if replies:
        prompt = replies[0].num_prompt_tokens
        sampled = sum(reply.num_sampled_tokens for reply in replies)
        counts = {"promptTokenCount": prompt, "candidatesTokenCount": sampled}
        found["usageMetadata"] = {**counts, "totalTokenCount": prompt + sampled}
    return found


def _candidate(index: int, parts: Sequence[Any], reply: ChatReply | None) -> dict[str, Any]:
    """A candidate, or a part of one: `reply` is given where it ends."""
    found = {"index": index, "content": {"role": "model", "parts": parts}}
    if reply is not None:
        found["finishReason"] = "MAX_TOKENS" if reply.finish_reason == "length" else "STOP"
    return found


def _part(kind: str, content: Any) -> dict[str, Any]:
    """Return a block of a reply, as `ChatReply.blocks` yields it."""
    if kind != "call":
        return {"text": content, **({"thought": True} if kind == "thought" else {})}
    name, arguments = content["function"]["name"], content["function"]["arguments"]
    return {"functionCall": {"id": content["id"], "name": name, "args": json.loads(arguments)}}


class Events(EventWriter):
    """A response as server-sent events."""

    blocks_end = False

    def __init__(self, model: str, fields: openai_chat.ChatCompletionBody) -> None:
        super().__init__()
        self._model, self._name = model, secrets.token_hex(12)

    def piece(self, kind: str, text: str) -> str:
        return self._event([_candidate(self.index, [_part(kind, text)], None)])

    def call(self, number: int, call: Mapping[str, Any]) -> str:
        return self._event([_candidate(self.index, [_part("call", call)], None)])

    def finish(self, replies: Sequence[ChatReply]) -> str:
        ends = [_candidate(i, [_part("text", "")], reply) for i, reply in enumerate(replies)]
        return self._event(ends, replies)

    def failed(self, error: ApiError) -> str:
        return openai_chat.event(error_body(error))

    def _event(self, candidates: Sequence[Any], replies: Sequence[ChatReply] = ()) -> str:
        return openai_chat.event(_response(self._model, self._name, candidates, replies))


def error_body(error: ApiError) -> dict[str, Any]:
    status = _ERRORS.get(error.status, "INTERNAL")
    return {"error": {"code": error.status, "message": error.message, "status": status}}
