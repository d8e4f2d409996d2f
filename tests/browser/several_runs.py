"""Runs to compare, made up: their settings, code, clocks and numbers of episodes differ."""

import json

from turnwise.runs.metrics_log import MetricsLog
from view.runs_to_view import said, write_run

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
            "kl": 1e-13 * step,
            "num_sampled_tokens": 1000,
            "time/step": seconds,
            **({"num_episodes": num_episodes} if num_episodes else {}),
        }
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
    make(folder / "old", 10.0, 4, notes={"archived": True})
    add_parts_of_a_mix(folder / "old")
    damaged = write_run(folder / "damaged", {1: [said("Hello")]})
    with open(damaged / "metrics.jsonl", "a") as log:
        log.write("this is no line of metrics\n")
    (damaged / "notes.json").write_text('{"tags": "no list"}')
    long = write_run(folder / "long", {1: [said("Hello")]})
    lines = [{"step": step, "reward": 0.5} for step in range(2, 1001)]
    with open(long / "metrics.jsonl", "a") as log:
        log.writelines(f"{json.dumps(line)}\n" for line in lines)


def add_parts_of_a_mix(folder):
    """One step more, of which each part of a mix has its own metrics."""
    parts = {"maze/num_groups": 2, "maze/reward": 0.25, "echo/num_groups": 2, "echo/reward": 0.75}
    evaluated = {"eval/maze/greedy/reward": 0.5, "eval/echo/greedy/reward": 1.0}
    line = {"step": NUM_STEPS + 1, "reward": 0.5, **parts, **evaluated}
    MetricsLog(folder / "metrics.jsonl").append(line)
