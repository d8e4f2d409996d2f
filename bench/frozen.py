"""Small runs of each engine and each mode of the trainer, to compare two commits.

    python bench/frozen.py record runs.json     before a change, in a checkout of that commit
    python bench/frozen.py compare runs.json    after it: every metric of every step

A run that plays the same episodes and learns the same has the same metrics to the last digit. Where
a change rounds differently, the largest relative difference is printed; a different token shows as
a large one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

from turnwise import ConfigStore, Trainer
from turnwise.env import BaseEnvironment

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SMALL = {
    "training.batch_size": 8,
    "training.num_epochs": 1,
    "training.steps_per_epoch": 3,
    "training.warm_start_steps": 3,
    "training.learning_rate": 1e-3,
    "inference.max_tokens": 8,
}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "ppo": ("guess-number", {"training.adv_estimator": "gae", "training.use_kl_in_reward": True}),
    "grpo": ("guess-number", {"training.adv_estimator": "grpo", "training.group_size": 4}),
    "turns": ("guess-number", {"training.adv_estimator": "turn_gae"}),
    "transformers": ("guess-number", {"inference.backend": "transformers"}),
    "lora": ("guess-number", {"training.lora_rank": 4, "training.kl_loss_coef": 0.01}),
    "tools": (f"{EXAMPLES}/shop.py:Shop", {"inference.max_tokens": 16, "limits.max_turns": 3}),
    "players": ("nim", {"training.adv_estimator": "gae"}),
    "evaluated": ("grid-world", {"training.eval_episodes": 4, "limits.max_turns": 4}),
}


class Nim(BaseEnvironment):
    """Two players take one or two sticks; who takes the last one wins."""

    players = ("first", "second")
    max_steps = 8
    quick = True

    def reset(self) -> str:
        self._done = False
        self.left, self.current_player = 7, "first"
        return "7 sticks. 1 or 2?"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        mover = self.current_player
        other = "second" if mover == "first" else "first"
        self.current_player = other
        taken = 1 if "1" in action else 2
        self.left -= taken
        self._done = self.left <= 0
        rewards = {mover: 1.0, other: -1.0} if self._done else {}
        return f"{self.left} left", 0.0, self._done, {"rewards": rewards}

    def get_state_description(self) -> str:
        return f"{self.left} left"

    def sample_action(self, rng: object) -> str:
        return "1"


def run(name: str) -> list[dict[str, object]]:
    """The metrics of the steps of one case, without those that depend on the clock."""
    environment, settings = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"{key}={value}" for key, value in {**SMALL, **settings}.items()]
        config = ConfigStore.load(overrides=[*overrides, f"checkpoint.output_dir={folder}/run"])
        world = Nim if environment == "nim" else environment
        with Trainer(config, world, reporter=None) as trainer:
            history = trainer.fit()
    return [{key: value for key, value in step.items() if not _is_timed(key)} for step in history]


def _is_timed(metric: str) -> bool:
    return metric.startswith("time/") or "per_second" in metric or "memory" in metric


def difference(ours: object, theirs: object) -> float:
    """The relative difference of two numbers, infinite for what else differs."""
    if ours == theirs:
        return 0.0
    if not isinstance(ours, (int, float)) or not isinstance(theirs, (int, float)):
        return math.inf
    if math.isnan(ours) and math.isnan(theirs):
        return 0.0
    return abs(ours - theirs) / max(abs(ours), abs(theirs))


def compare(name: str, ours: list[dict[str, object]], theirs: list[dict[str, object]]) -> bool:
    worst = max(
        (difference(mine.get(key), other.get(key)), number, key)
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True))
        for key in mine.keys() | other.keys()
    )
    where = f"largest in {worst[2]} of step {worst[1] + 1}" if worst[0] else "equal"
    print(f"{name:14} {worst[0]:.1e}  {where}", flush=True)
    return worst[0] == 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--case", action="append", choices=tuple(CASES))
    options = parser.parse_args()
    names = options.case or list(CASES)
    if options.what == "record":
        options.file.write_text(json.dumps({name: run(name) for name in names}, indent=1))
        return
    recorded = json.loads(options.file.read_text())
    equal = [compare(name, run(name), recorded[name]) for name in names]
    sys.exit(0 if all(equal) else 1)


if __name__ == "__main__":
    main()
