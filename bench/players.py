"""How well the expert and the random player do in each built-in game: the bounds for an agent.

python bench/players.py [NUM_SEEDS]
"""

from __future__ import annotations

import sys
from statistics import fmean

from turnwise import Trajectory, expert_player, make_environment, play_episode, random_player
from turnwise.env.catalog import BUILT_IN
from turnwise.env.players import Player


def play(name: str, player: Player, num_seeds: int) -> list[Trajectory]:
    return [play_episode(make_environment(name), player, seed) for seed in range(num_seeds)]


def main() -> None:
    num_seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    print(f"over {num_seeds} seeds")
    print("| game | expert: success | reward | turns | random: success | reward |")
    print("|---|---|---|---|---|---|")
    for name in BUILT_IN:
        expert = play(name, expert_player, num_seeds)
        chance = play(name, random_player(0), num_seeds)
        print(
            f"| `{name}` | {fmean(t.success for t in expert):.3f} "
            f"| {fmean(t.total_reward for t in expert):.2f} "
            f"| {fmean(t.num_turns for t in expert):.1f} "
            f"| {fmean(t.success for t in chance):.3f} "
            f"| {fmean(t.total_reward for t in chance):.2f} |"
        )


if __name__ == "__main__":
    main()
