"""Rewards import and score where torch is not installed."""

import subprocess
import sys

SCRIPT = """
import sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Forbid())

from types import SimpleNamespace
import turnwise.reward as reward
from turnwise.types import Trajectory

won = Trajectory(actions=["go"], rewards=[1.0], infos=[{"success": True}])
judge = reward.LLMJudge(lambda prompt: "Score: 5")
mixed = reward.WeightedReward({"steps": (None, 1.0), "judge": (judge, 2.0)})
print(reward.compute_reward(won).total)
print([outcome.total for outcome in reward.score_trajectories([won, won], mixed)])
manager = reward.RewardManager(SimpleNamespace(max_steps=10))
print(round(manager.compute_trajectory_reward(won), 6))
try:
    manager.compute_batch_rewards([won])
except ModuleNotFoundError as error:
    print("batch:", error.name)
assert "torch" not in sys.modules
"""


def test_scoring_without_torch():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["1.0", "[2.0, 2.0]", "6.9", "batch: torch"]
