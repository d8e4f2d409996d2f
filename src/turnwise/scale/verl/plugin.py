"""VERL imports this module in each of its processes (`VERL_USE_EXTERNAL_MODULES`).

It registers what our runs ask VERL for by name: the agent loop that plays our episodes, and on a
CPU the platform, the rollout and its server.
"""

from __future__ import annotations

import os
from typing import Any

from turnwise.scale.verl.targets import AGENT_LOOP, CPU_ROLLOUT


def _load_replica() -> Any:
    from turnwise.scale.verl.cpu.rollout import CpuReplica

    return CpuReplica


if os.environ.get("VERL_PLATFORM") == "cpu":
    # First: VERL's next imports ask for the platform, once.
    import turnwise.scale.verl.cpu.platform  # noqa: F401

from verl.experimental.agent_loop import agent_loop  # noqa: E402
from verl.workers.rollout import base, replica  # noqa: E402

agent_loop._agent_loop_registry[AGENT_LOOP] = {
    "_target_": "turnwise.scale.verl.agent_loop.EpisodeAgentLoop"
}
base._ROLLOUT_REGISTRY[CPU_ROLLOUT, "async"] = "turnwise.scale.verl.cpu.rollout.CpuWeightSender"
replica.RolloutReplicaRegistry.register(CPU_ROLLOUT, _load_replica)
