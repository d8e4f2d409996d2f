"""Keeps what VERL's trainer was given, for the tests to look at."""

import os
from pathlib import Path
from typing import Any

import torch

from turnwise.scale.verl.agent_loop import EpisodeLoopManager

KEPT = ("prompts", "responses", "response_mask", "attention_mask", "rm_scores", "rollout_log_probs")


class RecordingManager(EpisodeLoopManager):
    def generate_sequences(self, prompts: Any) -> Any:
        output = super().generate_sequences(prompts)
        folder = Path(os.environ["RECORDED"])
        batch = {name: output.batch[name].clone() for name in KEPT}
        torch.save(batch, folder / f"batch-{len(list(folder.glob('batch-*')))}.pt")
        return output
