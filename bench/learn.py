"""Trains the demo on several seeds: success at the start and at the end, and the time it takes.

python bench/learn.py                  five seeds of `turnwise train`
python bench/learn.py --seeds 0 1 --set training.num_epochs=6
"""

from __future__ import annotations

import argparse
import datetime
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import torch

from results import add_record_option, describe_machine, record
from turnwise import ConfigStore, Trainer, expert_player, play_episode, random_player
from turnwise.cli.train import DEMO
from turnwise.env import environment_factory
from turnwise.trainer.rollout import held_out_tasks

ENOUGH = 0.9
"""The share of the expert's success that every seed must reach."""
MOST_MINUTES = 3.0
VISIBLE_RISE = 0.1
"""By so much the mean success of five steps has to be above that of the first five."""
MOST_SECONDS_TO_RISE = 30.0


@dataclass(frozen=True)
class Learned:
    """The result of one seed."""

    start: float
    """Success in the first training step, after the warm start."""
    end: float
    """Sampled success on held-out seeds at the end."""
    greedy: float
    minutes: float
    minutes_to_bar: float | None
    """Minutes until an evaluation reached the bar; None if none did."""
    steps_to_bar: int | None
    """Training steps until then, which do not depend on the machine."""
    seconds_to_rise: float | None
    """Seconds of training, after the warm start, until success was visibly rising."""


def learn(config: ConfigStore, expert: float) -> Learned:
    started = time.perf_counter()
    with Trainer(config) as trainer:
        history = trainer.fit()
    minutes = (time.perf_counter() - started) / 60
    spent, reached, steps = 0.0, None, None
    for metrics in history:
        spent += metrics["time/step"] + metrics.get("time/evaluate", 0.0)
        success = metrics.get("eval/sampled/success")
        if reached is None and success is not None and success >= ENOUGH * expert:
            reached, steps = spent, int(metrics["step"])
    seconds, to_rise = 0.0, None
    successes = [metrics["success"] for metrics in history]
    for index, metrics in enumerate(history):
        seconds += metrics["time/step"]
        recent = mean(successes[max(index - 4, 0) : index + 1])
        if to_rise is None and index >= 5 and recent >= mean(successes[:5]) + VISIBLE_RISE:
            to_rise = seconds
    warm = minutes * 60 - sum(m["time/step"] + m.get("time/evaluate", 0.0) for m in history)
    last = history[-1]
    return Learned(
        history[0]["success"],
        last["eval/sampled/success"],
        last["eval/greedy/success"],
        minutes,
        None if reached is None else (reached + warm) / 60,
        steps,
        to_rise,
    )


def scripted(config: ConfigStore, player: str) -> float:
    """Returns the success of a scripted player on the held-out seeds."""
    make = environment_factory(config.environment.name, config.environment)
    tasks = held_out_tasks(config.training.eval_episodes, config.training.seed)
    plays = [
        play_episode(
            make(), expert_player if player == "expert" else random_player(task.seed), task.seed
        )
        for task in tasks
    ]
    return sum(play.success for play in plays) / len(plays)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--set", nargs="*", default=[], metavar="SECTION.NAME=VALUE")
    add_record_option(parser)
    options = parser.parse_args(arguments)
    print(
        f"{describe_machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, {datetime.date.today()}"
    )
    print("seed  expert  random   start     end  greedy  minutes  to the bar  steps  s to rise")
    is_enough, results = True, []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            config = ConfigStore.load(DEMO, [f"training.seed={seed}", *options.set])
            config.checkpoint.output_dir = folder
            expert, chance = scripted(config, "expert"), scripted(config, "random")
            found = learn(config, expert)
        reached = "never" if found.minutes_to_bar is None else f"{found.minutes_to_bar:.2f}"
        rise = "never" if found.seconds_to_rise is None else f"{found.seconds_to_rise:.0f}"
        print(
            f"{seed:4}  {expert:6.2f}  {chance:6.2f}  {found.start:6.2f}  {found.end:6.2f}  "
            f"{found.greedy:6.2f}  {found.minutes:7.2f}  {reached:>10}  "
            f"{found.steps_to_bar or 'never':>5}  {rise:>9}",
            flush=True,
        )
        if options.record:
            record(
                f"learn/seed {seed}",
                {
                    "expert": expert,
                    "random": chance,
                    "first step": found.start,
                    "end, sampled": found.end,
                    "end, greedy": found.greedy,
                    "minutes": found.minutes,
                    **({"minutes to 0.9": found.minutes_to_bar} if found.minutes_to_bar else {}),
                    **({"s to rise": found.seconds_to_rise} if found.seconds_to_rise else {}),
                },
            )
            results.append(found)
        rises = (found.seconds_to_rise or math.inf) <= MOST_SECONDS_TO_RISE
        in_time = found.minutes <= MOST_MINUTES
        is_enough &= rises and in_time and found.greedy >= ENOUGH * expert
    if results:
        columns = {"first step": "start", "end, sampled": "end", "end, greedy": "greedy"}
        columns["minutes"] = "minutes"
        ranges = {
            name: sorted({f(getattr(found, attribute) for found in results) for f in (min, max)})
            for name, attribute in columns.items()
        }
        record("demo/5 seeds", ranges)
    print(
        f"{'PASS' if is_enough else 'FAIL'}: on each seed at least {ENOUGH} of the expert's greedy"
    )
    print(f"success, finished within {MOST_MINUTES:g} minutes, and visibly rising within")
    print(f"{MOST_SECONDS_TO_RISE:g} seconds of training")
    return 0 if is_enough else 1


if __name__ == "__main__":
    raise SystemExit(main())
