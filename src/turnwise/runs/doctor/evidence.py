"""Evidence from a run folder: shared rows, and an episode that shows a finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.errors import ConfigError
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.episode_table import StoredAgent, StoredEpisode
from turnwise.runs.run_folder import RunFolder

AFTER_SHARED_ROWS = (
    "Remove these rows from one of the two datasets, or leave out eval_dataset: then a share of "
    "the training rows is held out by their content (training.eval_fraction)."
)
_STATUSES = {
    "errors": "_error",
    "out-of-turns": "by_turns",
    "out-of-tokens": "by_tokens",
    "out-of-time": "by_time",
    "out-of-tool-calls": "by_tool_calls",
}
"""How the status of an episode ends that shows a finding."""


def rows_trained_on(facts: Mapping[str, Any]) -> str | None:
    """Return how many rows of evaluation datasets are also in the training dataset, if any.

    `facts` is the content of `run.json`.
    """
    datasets = facts.get("datasets")
    texts = []
    for name, rows in datasets.items() if isinstance(datasets, dict) else ():
        counts = rows if isinstance(rows, dict) else {}
        shared, total = counts.get("rows_trained_on"), counts.get("rows_compared")
        if isinstance(shared, int) and isinstance(total, int):
            texts.append(f"{shared:,} of {total:,} rows of {name} are also in the training dataset")
    if not texts:
        return None
    return (
        f"{' and '.join(texts)}: evaluations are in part on rows that are trained on, and look "
        "better than they would on new rows."
    )


def example_episode(folder: RunFolder, code: str) -> str | None:
    """Return the id of an episode of the last step that shows the finding."""
    store = EpisodeStore(folder.episodes, 0)
    try:
        step = store.steps()[-1]
        episodes = store.read(step)
    except (IndexError, ConfigError, OSError):
        return None
    for index, episode in enumerate(episodes):
        if any(_shows(code, episode, agent) for agent in episode.agents):
            return f"train-{step}-{index}"
    return None


def _shows(code: str, episode: StoredEpisode, agent: StoredAgent) -> bool:
    turns = agent.turns
    match code:
        case "cut-turns":
            return any(turn.finish_reason == "length" for turn in turns)
        case "malformed-calls":
            return any(turn.malformed for turn in turns)
        case "unread-calls":
            return any(not turn.calls for turn in turns)
        case "invalid-actions":
            return any(turn.info.get("invalid_action") for turn in turns)
        case "misplaced-reward":
            rewards = (agent.reward.per_turn if agent.reward is not None else None) or [0.0]
            return rewards[-1] <= 0 < max(rewards)
        case "success-unpaid" | "answer-shown":
            return bool(turns and turns[-1].info.get("success"))
        case "constant-reward" | "alike-groups" | "too-hard":
            return True
    return code in _STATUSES and episode.status.endswith(_STATUSES[code])
