"""Google's `generateContent`, streaming too: requests read, replies and events written."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from turnwise.agents.live import EventWriter
from turnwise.agents.requests import (
    ApiError,
    ChatReply,
    ChatRequest,
    log_once,
    read_sampling,
    stop_strings,
    tool_choice,
    unsupported,
    validated,
)
from turnwise.chat import Message

PATH = "/v1beta/models/{model:path}:{method}"
_CHOICES = {"NONE": "none", "ANY": "required"}
_ERRORS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
}


class _CamelCase(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Called(_CamelCase):
    """A call of a function, or its result."""

    id: str | None = None
    """Some clients leave it out: then a call and its result have the name in common."""
    name: str
    args: dict[str, Any] | None = None
    response: Any = None


class Part(_CamelCase):
    """One of these; other parts are no text, and are refused."""

    model_config = ConfigDict(extra="allow")
    text: str | None = None
    thought: bool = False
    thought_signature: Any = None
    function_call: Called | None = None
    function_response: Called | None = None


class Content(_CamelCase):
    """One side's turn of a conversation."""

    role: str | None = "user"
    parts: list[Part] = Field(default_factory=list)


class FunctionDeclaration(_CamelCase):
    """A function that the client has; its schema is in JSON Schema or in Google's form of it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class Tools(_CamelCase):
    """Functions; all else that may stand here runs on Google's servers."""

    model_config = ConfigDict(extra="allow")
    function_declarations: list[FunctionDeclaration] = Field(default_factory=list)


class FunctionCalling(_CamelCase):
    """Which functions may or must be called."""

    mode: Literal["MODE_UNSPECIFIED", "AUTO", "VALIDATED", "NONE", "ANY"] = "AUTO"
    allowed_function_names: list[str] | None = None


class ToolConfig(_CamelCase):
    """Holds the one setting of tools that there is."""

    function_calling_config: FunctionCalling = Field(default_factory=FunctionCalling)


class GenerationConfig(_CamelCase):
    """How a reply is sampled."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: int | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    stop_sequences: list[str] | None = None
    candidate_count: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: int | None = None
    response_mime_type: str | None = None


class GenerateContentBody(_CamelCase):
    """The fields of a request that have an effect; the first three are those of its URL."""

    model: str
    method: Literal["generateContent", "streamGenerateContent", "countTokens"]
    alt: str = "json"
    contents: list[Content]
    system_instruction: Content | None = None
    tools: list[Tools] = Field(default_factory=list)
    tool_config: ToolConfig = Field(default_factory=ToolConfig)
    generation_config: GenerationConfig = Field(default_factory=GenerationConfig)

    @property
    def stream(self) -> bool:
        return self.method == "streamGenerateContent" and self.alt == "sse"


def parse(data: Any, _: Mapping[str, Any]) -> tuple[GenerateContentBody, ChatRequest]:
    """Read a request; raises ApiError with the field that is wrong."""
    fields = validated(GenerateContentBody, data, refused=("cachedContent",))
    config = fields.generation_config
    if config.response_mime_type not in (None, "text/plain"):
        raise unsupported("generationConfig.responseMimeType")
    messages: list[Message] = []
    if fields.system_instruction is not None:
        messages += _messages(fields.system_instruction, "systemInstruction", "system")
    for number, content in enumerate(fields.contents):
        role = "assistant" if content.role == "model" else "user"
        messages += _messages(content, f"contents.{number}", role)
    for name in {name for tools in fields.tools for name in tools.model_extra or ()}:
        log_once(f"The gateway runs no tools: {name!r:.80} is left out of a request.")
    functions = [_tool(each) for tools in fields.tools for each in tools.function_declarations]
    choice = fields.tool_config.function_calling_config
    allowed = choice.allowed_function_names
    chosen = [f for f in functions if allowed is None or f["function"]["name"] in allowed]
    return fields, ChatRequest(
        messages,
        functions,
        **tool_choice(_CHOICES.get(choice.mode), chosen),
        num_replies=config.candidate_count or 1,
        max_tokens=config.max_output_tokens,
        stop=stop_strings(config.stop_sequences),
        sampling=read_sampling(config),
        seed=config.seed,
    )


def _tool(function: FunctionDeclaration) -> dict[str, Any]:
    kept: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        kept["description"] = function.description
    if schema := function.parameters_json_schema or function.parameters:
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


def _messages(content: Content, param: str, role: str) -> list[Message]:
    """A content as chat messages: responses of functions are messages of their own."""
    texts: list[str] = []
    results: list[Message] = []
    kept: dict[str, Any] = {"role": role}
    for part in content.parts:
        if part.model_extra:
            raise ApiError(f"{param} has {[*part.model_extra]!r:.80}; this model takes text only")
        if (result := part.function_response) is not None:
            message = {"role": "tool", "tool_call_id": result.id or result.name}
            results.append({**message, "content": _result_text(result.response)})
        elif (call := part.function_call) is not None:
            function = {"name": call.name, "arguments": json.dumps(call.args or {})}
            written = {"id": call.id or call.name, "type": "function", "function": function}
            kept.setdefault("tool_calls", []).append(written)
        elif part.thought:
            kept["reasoning_content"] = kept.get("reasoning_content", "") + (part.text or "")
        else:
            texts.append(part.text or "")
    if results and not texts:
        return results
    # What was streamed in pieces is one text.
    return [*results, {**kept, "content": ("" if role == "assistant" else "\n\n").join(texts)}]


def _result_text(response: Any) -> str:
    """What a function returned: a text as it is, anything else as JSON."""
    if isinstance(response, Mapping) and [*response] == ["output"]:
        response = response["output"]
    return response if isinstance(response, str) else json.dumps(response, ensure_ascii=False)


def body(model: str, replies: Sequence[ChatReply], fields: GenerateContentBody) -> Any:
    """The body of a response; a stream that is not asked for as events is a list of bodies."""
    whole = _response(model, secrets.token_hex(12), replies)
    whole["candidates"] = [
        _candidate(index, [_part(kind, content) for kind, content in reply.blocks()], reply)
        for index, reply in enumerate(replies)
    ]
    return [whole] if fields.method == "streamGenerateContent" else whole


def counted(num_tokens: int) -> dict[str, Any]:
    """The body of a response to `countTokens`."""
    return {"totalTokens": num_tokens}


def _response(model: str, name: str, replies: Sequence[ChatReply]) -> dict[str, Any]:
    """A response without its candidates; without replies, it has no counts either."""
    found: dict[str, Any] = {"modelVersion": model, "responseId": name}
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

    def __init__(self, model: str, fields: GenerateContentBody) -> None:
        super().__init__()
        self._model, self._name = model, secrets.token_hex(12)

    def begin(self, num_prompt_tokens: int, reply: ChatReply | None) -> str:
        return ""

    def piece(self, kind: str, text: str) -> str:
        return self._event([_candidate(self.index, [_part(kind, text)], None)])

    def call(self, number: int, call: Mapping[str, Any]) -> str:
        return self._event([_candidate(self.index, [_part("call", call)], None)])

    def finish(self, replies: Sequence[ChatReply]) -> str:
        ends = [_candidate(i, [_part("text", "")], reply) for i, reply in enumerate(replies)]
        return self._event(ends, replies)

    def failed(self, error: ApiError) -> str:
        return f"data: {json.dumps(error_body(error), ensure_ascii=False)}\n\n"

    def _event(self, candidates: Sequence[Any], replies: Sequence[ChatReply] = ()) -> str:
        event = {"candidates": candidates, **_response(self._model, self._name, replies)}
        return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


def error_body(error: ApiError) -> dict[str, Any]:
    """An error as Google writes it."""
    status = _ERRORS.get(error.status, "INTERNAL")
    return {"error": {"code": error.status, "message": error.message, "status": status}}
