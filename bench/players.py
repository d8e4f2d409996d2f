"""Plays each built-in game with its expert and with random actions: the bounds for an agent.

python bench/players.py [--seeds 500] [--record]
"""

from __future__ import annotations

import argparse
from statistics import fmean

from results import add_record_option, record
from turnwise import Trajectory, expert_player, make_environment, play_episode, random_player
from turnwise.env.catalog import BUILT_IN
from turnwise.env.players import Player


def play(name: str, player: Player, num_seeds: int) -> list[Trajectory]:
    return [play_episode(make_environment(name), player, seed) for seed in range(num_seeds)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Play the built-in games without a model.")
    parser.add_argument("--seeds", type=int, default=500, help="episodes of each player")
    add_record_option(parser)
    options = parser.parse_args()
    print(f"over {options.seeds} seeds")
    for name in BUILT_IN:
        expert = play(name, expert_player, options.seeds)
        chance = play(name, random_player(0), options.seeds)
        figures = {
            "expert success": fmean(t.success for t in expert),
            "expert reward": fmean(t.total_reward for t in expert),
            "expert turns": fmean(t.num_turns for t in expert),
            "random success": fmean(t.success for t in chance),
            "random reward": fmean(t.total_reward for t in chance),
        }
        print(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in figures.items()))
        if options.record:
            record(f"players/{name}", figures)


if __name__ == "__main__":
    main()
