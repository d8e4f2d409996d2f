"""The schema of the JSON in a file of episodes, checked when it is read."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from annotated_types import Ge, Le, Len
from pydantic import InstanceOf, Strict, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from turnwise.errors import ConfigError
from turnwise.types import EpisodeStatus

# Texts may have half a surrogate pair, which pydantic's `str` refuses.
Text = InstanceOf[str]

Count = Annotated[int, Ge(0), Le(2**53)]
Number = float
Seconds = dict[Text, Number]
_FORBID = {"extra": "forbid", "strict": True}
FORMAT = 1


class Call(TypedDict):
    """A tool call."""

    __pydantic_config__ = _FORBID  # type: ignore[misc] # pydantic's own way
    name: Text
    arguments: NotRequired[Any]
    result: NotRequired[Any]
    success: NotRequired[bool | None]
    failure: NotRequired[Text | None]
    seconds: NotRequired[Number]


class Turn(TypedDict):
    """One turn of an agent."""

    __pydantic_config__ = _FORBID  # type: ignore[misc]
    tokens: Annotated[list[Count], Len(2, 2)]
    finish_reason: Text
    weight_version: int
    kind: NotRequired[Text]
    text: NotRequired[Text]
    observation: NotRequired[Text]
    state: NotRequired[Text]
    calls: NotRequired[list[Call]]
    malformed: NotRequired[Text | None]
    reward: NotRequired[Number | Literal["nan", "inf", "-inf"]]
    done: NotRequired[bool]
    info: NotRequired[dict[Text, Any]]
    seconds: NotRequired[Seconds]
    message: NotRequired[Count]
    later_versions: NotRequired[list[Annotated[list[int], Len(2, 2)]]]


class Reward(TypedDict):
    """What an agent earned."""

    __pydantic_config__ = _FORBID  # type: ignore[misc]
    total: Number
    per_turn: NotRequired[list[Number] | None]
    parts: NotRequired[dict[Text, Number]]


class Message(TypedDict):
    """A message of a conversation; other keys belong to the chat template."""

    __pydantic_config__ = {"extra": "allow", "strict": True}  # type: ignore[misc] # noqa: RUF012
    role: Text
    content: NotRequired[Any]


class Agent(TypedDict):
    """One agent's side of an episode."""

    __pydantic_config__ = _FORBID  # type: ignore[misc]
    name: Text
    messages: list[Message]
    turns: list[Turn]
    reward: NotRequired[Reward]
    branches: NotRequired[list[Annotated[list[Count], Len(2, 2)]]]
    result: NotRequired[Any]


class Episode(TypedDict):
    """One episode, however it ended."""

    __pydantic_config__ = _FORBID  # type: ignore[misc]
    seed: int
    group: Count
    member: Count
    status: Literal[tuple(status.value for status in EpisodeStatus)]  # type: ignore[valid-type]
    error: NotRequired[Text | None]
    traceback: NotRequired[Text | None]
    attempt: NotRequired[Count]
    part: NotRequired[Text]
    task: NotRequired[dict[Text, Any]]
    task_id: NotRequired[Text]
    seconds: Seconds
    agents: list[Agent]


class EpisodesText(TypedDict):
    """The whole text of a file."""

    __pydantic_config__ = _FORBID  # type: ignore[misc]
    format: int
    episodes: list[Episode]
    phases: NotRequired[list[Annotated[tuple[Text, Number, Number], Strict(False)]]]
    baselines: NotRequired[dict[Text, Number]]


def check_text(data: Any, place: str) -> dict[str, Any]:
    """Return the JSON of a file of episodes unchanged; raise `ConfigError` if it is invalid."""
    if isinstance(data, dict) and data.get("format", FORMAT) != FORMAT:
        raise ConfigError(
            f"{place} has format {data['format']!r:.80}, expected {FORMAT}: a newer turnwise "
            "wrote it"
        )
    try:
        _adapter().validate_python(data)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=True)[0]
        where = ".".join(map(str, problem["loc"])) or "it"
        raise ConfigError(
            f"{place} is no text of episodes: {where:.200} got {problem['input']!r:.80}. "
            f"{problem['msg']:.200}."
        ) from None
    checked: dict[str, Any] = data
    return checked


@cache
def _adapter() -> Any:
    return TypeAdapter(EpisodesText)
