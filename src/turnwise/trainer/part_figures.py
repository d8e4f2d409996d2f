"""The metrics of the parts of a mix, and of the mix from those of its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from turnwise.episode import Collection
from turnwise.trainer.figures import episode_figures
from turnwise.trainer.reporter import Metrics

_KEPT = (
    *("num_groups", "num_episodes", "reward", "reward_std", "success", "turns"),
    *("tokens_per_episode", "truncated", "errors", "invalid_actions"),
)


def step_figures(played: Collection) -> Metrics:
    """The metrics of all episodes, and of each part of a mix: `maze/reward` and so on."""
    figures = episode_figures(played)
    for name in sorted({result.part for result in [*played, *played.dropped]} - {""}):
        found = episode_figures(of_part(played, name))
        figures |= {f"{name}/{key}": found[key] for key in _KEPT if key in found}
    return figures


def of_part(played: Collection, name: str) -> Collection:
    """The episodes of one part of a mix."""
    return Collection(
        [result for result in played if result.part == name],
        [result for result in played.dropped if result.part == name],
    )


def weighted_mean(by_part: Mapping[str, Metrics], weights: Mapping[str, float]) -> Metrics:
    """The metrics of an evaluation over all parts, each counted with its weight in the mix.

    So they estimate the same as the metrics of a training step do, of which the parts have their
    shares of episodes. A metric that a part does not have is of those that do.
    """
    figures: Metrics = {}
    for name in dict.fromkeys(key for found in by_part.values() for key in found):
        own = {part: found[name] for part, found in by_part.items() if name in found}
        total = sum(weights[part] for part in own)
        figures[name] = sum(weights[part] * value for part, value in own.items()) / total
    if "reward_std" in figures:  # of the mixture: parts differ in their means too
        squares = {
            part: {"square": found["reward_std"] ** 2 + found["reward"] ** 2}
            for part, found in by_part.items()
            if "reward" in found
        }
        mean_square = weighted_mean(squares, weights)["square"]
        figures["reward_std"] = math.sqrt(max(0.0, mean_square - figures["reward"] ** 2))
    return figures
