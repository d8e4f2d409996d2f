"""Runs to compare, made up: their settings, code, clocks and numbers of episodes differ. One is a
real run with a mix of environments."""

import json

from trainer.worlds import Echo, Memory, small_trainer
from turnwise.runs.metrics_log import MetricsLog
from view.runs_to_view import SMALL, said, write_run

CONFIG = """
environment: {name: 'greenhouse.py:Greenhouse', params: {size: %d}}
training: {learning_rate: %s, batch_size: 8}
checkpoint: {run_name: any}
reward: greenhouse.py:score
tools: [calculator]
"""
NUM_STEPS = 20


def make(folder, seconds, num_episodes, size=3, rate="0.001", code="aaaaaaaaaa", notes=None):
    """A run whose steps took so long and played so many episodes."""
    write_run(folder, {1: [said("Hello")]})
    (folder / "metrics.jsonl").unlink()
    log = MetricsLog(folder / "metrics.jsonl")
    for step in range(1, NUM_STEPS + 1):
        metrics = {
            "step": step,
            "reward": step * float(rate) * 10,
            "success": step / NUM_STEPS,
            "entropy": 1 - step / 40,
            "advantage_mean": -1.0,
            "grad_norm": 0.0 if step == 3 else 10.0**-step,
            "kl": 0.01 * step,
            "num_steps": 4 if size == 5 else 1,
            "num_sampled_tokens": 1000,
            "time/step": seconds,
            **({"num_episodes": num_episodes} if num_episodes else {}),
        }
        if size == 5 and step > 1:  # asynchronous
            metrics |= {"weights_behind": 2, "staleness/mean": 0.9, "staleness/0": 0.3}
            metrics |= {"staleness/1": 0.5, "staleness/2": 0.2, "idle/learner": 0.25}
        if step % 5 == 0:
            metrics |= {"eval/greedy/reward": 0.5, "eval/sampled/reward": 0.25}
            metrics |= {"eval/greedy/success": step / NUM_STEPS, "time/evaluate": 5.0}
        log.append(metrics)
    (folder / "config.yaml").write_text(CONFIG % (size, rate))
    about = {"status": "finished", "step": NUM_STEPS, "num_steps": NUM_STEPS}
    about |= {"environment": "Greenhouse", "identity": {"reward": code, "tools": "cccccccccc"}}
    (folder / "run.json").write_text(json.dumps(about))
    if notes is not None:
        (folder / "notes.json").write_text(json.dumps(notes))


def make_all(folder):
    make(folder / "plain", 60.0, 4, notes={"tags": ["baseline"], "note": "of the paper"})
    make(folder / "changed", 30.0, 8, rate="0.004", code="bbbbbbbbbb", notes={"tags": ["sweep"]})
    make(folder / "larger", 20.0, 0, size=5, rate="0.002", notes={"tags": ["sweep", "large"]})
    train_mix(folder)
    damaged = write_run(folder / "damaged", {1: [said("Hello")]})
    with open(damaged / "metrics.jsonl", "a") as log:
        log.write("this is no line of metrics\n")
    (damaged / "notes.json").write_text('{"tags": "no list"}')
    long = write_run(folder / "long", {1: [said("Hello")]})
    lines = [{"step": step, "reward": 0.5} for step in range(2, 1001)]
    with open(long / "metrics.jsonl", "a") as log:
        log.writelines(f"{json.dumps(line)}\n" for line in lines)


def quarter_more(trajectory):
    """A reward that differs between the environments, before anything is learned."""
    return trajectory.total_reward + 0.25


def train_mix(folder):
    """A run of the real trainer with two environments, `memory` and `echo`; archived."""
    parts = [
        {"environment": Memory, "weight": 3, "name": "memory", "reward": quarter_more},
        {"environment": Echo, "name": "echo"},
    ]
    settings = [*SMALL, "training.batch_size=4", "checkpoint.run_name=mixed"]
    with small_trainer(folder, None, *settings, environments=parts) as trainer:
        trainer.fit()
    (folder / "mixed" / "notes.json").write_text('{"archived": true}')
