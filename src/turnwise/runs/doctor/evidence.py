"""Evidence from a run folder: why the run stopped, and an episode that shows a finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.errors import ConfigError
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.episode_table import StoredAgent, StoredEpisode, StoredTurn
from turnwise.runs.run_folder import RunFolder

_STOPPED = "stopped: "


def why_stopped(folder: RunFolder) -> tuple[int, str] | None:
    """Return the finished steps and the reason if an error stopped the run."""
    status = folder.facts
    text = str(status.get("status", ""))
    if not text.startswith(_STOPPED):
        return None
    return int(status.get("step", 0)), text.removeprefix(_STOPPED)


def rows_trained_on(facts: Mapping[str, Any]) -> str | None:
    """Return how many rows of evaluation datasets are also in the training dataset, if any.

    `facts` is the content of `run.json`.
    """
    found = facts.get("datasets")
    texts = []
    for name, rows in found.items() if isinstance(found, dict) else ():
        own = rows if isinstance(rows, dict) else {}
        shared, total = own.get("rows_trained_on"), own.get("rows_compared")
        if isinstance(shared, int) and isinstance(total, int):
            texts.append(f"{shared:,} of {total:,} rows of {name} are also in the training dataset")
    if not texts:
        return None
    return (
        f"{' and '.join(texts)}: evaluations are in part on rows that are trained on, and look "
        "better than they would on new rows."
    )


AFTER_SHARED_ROWS = (
    "Remove these rows from one of the two datasets, or leave out eval_dataset: then a share of "
    "the training rows is held out by their content (training.eval_fraction)."
)


def example_of(folder: RunFolder, code: str) -> str | None:
    """Return the id of an episode of the last step that shows the finding."""
    shows = _SHOWS.get(code)
    store = EpisodeStore(folder.episodes, 0)
    steps = store.steps() if shows is not None else []
    if shows is None or not steps:
        return None
    try:
        episodes = store.read(steps[-1])
    except (ConfigError, OSError):
        return None
    for place, episode in enumerate(episodes):
        if any(shows(episode, agent) for agent in episode.agents):
            return f"train-{steps[-1]}-{place}"
    return None


def _any_turn(shows: Callable[[StoredTurn], object]) -> Any:
    return lambda episode, agent: any(shows(turn) for turn in agent.turns)


def _has_status(status: str) -> Any:
    return lambda episode, agent: episode.status.endswith(status)


def _rewards(agent: StoredAgent) -> Sequence[float]:
    return (agent.reward.per_turn if agent.reward is not None else None) or [0.0]


def _is_success(agent: StoredAgent) -> bool:
    return bool(agent.turns and agent.turns[-1].info.get("success"))


_SHOWS: Mapping[str, Callable[[StoredEpisode, StoredAgent], object]] = {
    "errors": _has_status("_error"),
    "cut-turns": _any_turn(lambda turn: turn.finish_reason == "length"),
    "malformed-calls": _any_turn(lambda turn: turn.malformed),
    "unread-calls": _any_turn(lambda turn: not turn.calls),
    "invalid-actions": _any_turn(lambda turn: turn.info.get("invalid_action")),
    "misplaced-reward": lambda episode, agent: _rewards(agent)[-1] <= 0 < max(_rewards(agent)),
    "success-unpaid": lambda episode, agent: _is_success(agent),
    "answer-shown": lambda episode, agent: _is_success(agent),
    "constant-reward": lambda episode, agent: True,
    "alike-groups": lambda episode, agent: True,
    "too-hard": lambda episode, agent: True,
    "out-of-turns": _has_status("by_turns"),
    "out-of-tokens": _has_status("by_tokens"),
    "out-of-time": _has_status("by_time"),
    "out-of-tool-calls": _has_status("by_tool_calls"),
}
