"""What agents ask for and what they get, whichever API they speak."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from turnwise.chat import Message
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.inference import SamplingParams
from turnwise.types import NotText, read_content


class ApiError(TurnwiseError, RuntimeError):
    """A request that is refused; each API writes it in its own form."""

    def __init__(
        self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        """OpenAI's name for it, such as `context_length_exceeded`."""
        self.param = param
        """The field of the request that is wrong."""


@dataclass
class ChatRequest:
    """One call of the model: messages in, one reply or several out.

    Messages are those of OpenAI's chat completions, with texts as contents.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    may_call_tools: bool = True
    """False: the reply is text, whatever the policy writes (`tool_choice: none`)."""
    must_call: Sequence[str] = ()
    """Names of tools: the reply begins a call of one of them (`tool_choice: required`)."""
    parallel_tool_calls: bool = True
    """False: the reply has one call at most."""
    num_replies: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: SamplingParams | None = None
    """What the request asks for; training samples with the run's own."""
    seed: int | None = None
    enable_thinking: bool | None = None
    """What the request asks for; training has the run's own setting."""
    wants_log_probs: bool = False
    response_id: str | None = None
    """The id by which a later request can continue the conversation, in OpenAI's responses."""
    has_instructions: bool = False
    """Whether the first message is for this response alone, and is not carried over."""


@dataclass
class ChatReply:
    """One turn of the policy, as the agent gets it."""

    message: Message
    """`content`, `reasoning_content` and `tool_calls`, as in OpenAI's chat completions."""
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    num_prompt_tokens: int
    num_sampled_tokens: int
    tokens: Sequence[str] = field(default_factory=list)
    """The text of each sampled token."""
    log_probs: Sequence[float] = field(default_factory=list)

    @property
    def content(self) -> str:
        return str(self.message.get("content") or "")

    @property
    def thought(self) -> str:
        return str(self.message.get("reasoning_content") or "")

    @property
    def calls(self) -> Sequence[Mapping[str, Any]]:
        calls: Sequence[Mapping[str, Any]] = self.message.get("tool_calls") or ()
        return calls

    def blocks(self) -> Iterator[tuple[str, Any]]:
        """Yield what it consists of, in order: a thought, a text, and each of its calls."""
        if self.thought:
            yield "thought", self.thought
        if self.content or not self.calls:
            yield "text", self.content
        for call in self.calls:
            yield "call", call


@dataclass(frozen=True)
class Delta:
    """What is new of a reply that is being sampled."""

    thought: str
    text: str
    num_prompt_tokens: int


@dataclass
class Sent:
    """What of a reply was shown while it was sampled."""

    thought: str = ""
    text: str = ""

    def add(self, delta: Delta) -> None:
        self.thought += delta.thought
        self.text += delta.text

    def remaining(self, thought: str, text: str) -> tuple[str, str]:
        """Return what of a thought and a text is still to be shown."""
        return (
            thought[len(self.thought) :] if thought.startswith(self.thought) else "",
            text[len(self.text) :] if text.startswith(self.text) else "",
        )


@dataclass(frozen=True)
class ServedRequest:
    """A request that was answered, for a log."""

    method: str
    path: str
    status: int
    num_prompt_tokens: int
    num_sampled_tokens: int
    seconds: float


class Shape(BaseModel):
    """The fields that an API knows; others are refused."""

    model_config = ConfigDict(extra="forbid")


def validated(
    shape: type[BaseModel], body: Any, *, ignored: Sequence[str], refused: Sequence[str]
) -> Any:
    """Return a body as the fields of an API; raises ApiError with the first one that is wrong.

    Fields that are `ignored` have no effect here; those that are `refused` must be empty.
    """
    if not isinstance(body, Mapping):
        raise ApiError(f"the body is a {type(body).__name__}, expected a JSON object")
    for name in refused:
        if body.get(name):
            raise unsupported(name)
    known = {name: body[name] for name in body if name not in (*ignored, *refused)}
    try:
        return shape.model_validate(known)
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


def unsupported(name: str) -> ApiError:
    return ApiError(
        f"Unsupported parameter: '{name}' is not supported by this server. Leave it out.",
        code="unsupported_parameter",
        param=name,
    )


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    texts = [stop] if isinstance(stop, str) else stop or ()
    return tuple(text for text in texts if text)


def read_sampling(fields: BaseModel) -> SamplingParams | None:
    names = ("temperature", "top_p", "top_k", "min_p")
    given = {name: getattr(fields, name, None) for name in names}
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen.get("top_k") == -1:  # vLLM's word for all
        chosen["top_k"] = 0
    try:
        return SamplingParams(**chosen) if chosen else None
    except ConfigError as error:
        raise ApiError(str(error)) from error


def read_text(content: Any, param: str, between: str = "") -> str:
    """Return a content as text: a string, or parts that are texts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise ApiError(f"{param} got a {type(content).__name__}, expected text", param=param)
    try:
        return read_content(content, between)
    except NotText as error:
        raise ApiError(f"{param} has {error}", param=param) from None


def tool_choice(choice: Any, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return fields of a `ChatRequest` for a choice of tools, in the form of any of the APIs."""
    kind, name = choice, None
    if isinstance(choice, Mapping):
        function = choice.get("function")
        named = function if isinstance(function, Mapping) else choice
        kind, name = choice.get("type"), named.get("name")
    if kind in (None, "auto", "none"):
        return {"may_call_tools": kind != "none"}
    functions = [tool.get("function") for tool in tools]
    names = [function.get("name") for function in functions if isinstance(function, Mapping)]
    if kind in ("required", "any") and names:  # two APIs, two names each
        return {"must_call": names}
    if kind in ("function", "tool") and name in names:
        return {"must_call": [name]}
    raise ApiError(
        f"tool_choice got {choice!r:.200}, expected auto, none, required or a function of the "
        f"request's tools: {', '.join(map(str, names)) or 'it has none'}",
        param="tool_choice",
    )


def check_messages(messages: Sequence[Message]) -> None:
    """Raise ApiError for calls without a function, and for names and ids that are no texts."""
    if not messages:
        raise ApiError("messages is empty, expected at least one message", param="messages")
    for number, message in enumerate(messages):
        calls = message.get("tool_calls") or []
        texts = [message.get("name"), message.get("tool_call_id")]
        try:
            texts += [call.get("id") for call in calls]
            is_valid = all(isinstance(call["function"]["name"], str) for call in calls)
        except (AttributeError, KeyError, TypeError):
            is_valid = False
        if not is_valid or not all(isinstance(text, str | None) for text in texts):
            raise ApiError(
                f"messages[{number}] has a name, an id or tool_calls of the wrong type, expected "
                "texts and a list of {'id': ..., 'function': {'name': ..., 'arguments': ...}}",
                param=f"messages.{number}",
            )


def pieces(text: str, size: int = 64) -> Iterator[str]:
    """Return a text in pieces, as a stream brings it."""
    return (text[start : start + size] for start in range(0, len(text), size))
