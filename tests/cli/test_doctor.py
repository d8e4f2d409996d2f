"""`turnwise doctor`: what it says of the machine and of a run."""

import json
import re
import sys
import tomllib
from pathlib import Path

from turnwise import ConfigStore, __version__
from turnwise.cli.doctor import EXTRAS

ROOT = Path(__file__).parents[2]


def facts_of(ran):
    return {(fact["part"], fact["name"]): fact for fact in json.loads(ran.out)["facts"]}


def write_run(folder, num_steps=30, **ways):
    """A run that earns nothing, but for `ways`."""
    folder.mkdir(parents=True)
    metrics = {"reward": 0.0, "reward_std": 0.0, "success": 0.0, **ways}
    lines = [json.dumps({"step": step, **metrics}) + "\n" for step in range(1, num_steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def test_this_machine_can_train(turnwise):
    ran = turnwise("doctor")
    assert ran.code == 0, ran.out
    assert f"✓ turnwise       {__version__}\n" in ran.out
    assert re.search(r"✓ torch +\S+, \d+ threads, with", ran.out) or "for CUDA" in ran.out
    assert re.search(r"✓ tiny +sampled 8 tokens and learned from them in .* agree to", ran.out)
    assert ran.out.endswith("This machine can train. Start with: turnwise train\n")


def test_without_transformers_nothing_can_be_trained(turnwise, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    ran = turnwise("doctor", "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["ok"] is False
    facts = facts_of(ran)
    broken = {name for (_, name), fact in facts.items() if fact["state"] == "broken"}
    assert broken == {"transformers", "tiny"}
    assert facts["software", "transformers"]["text"].startswith("ModuleNotFoundError: ")


def test_every_extra_is_told():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    elsewhere = {"vllm", "sglang", "smollm2", "dev"}  # engines, models, and what only we need
    assert set(project["optional-dependencies"]) - elsewhere == set(EXTRAS)


def test_a_sick_run(turnwise, tmp_path):
    run = write_run(tmp_path / "my run")
    ran = turnwise("doctor", str(run))
    assert ran.code == 0
    first, second, third = ran.out.splitlines()[:3]
    assert first == "step 5     constant-reward"
    assert second.startswith("  All episodes of the last 5 steps earned exactly 0, whatever")
    assert third.startswith("  fix: First look at the reward")
    said = " ".join(ran.out.split())
    assert f"{run}: 30 steps; success 0.000 after step 30: the training episodes of this" in said
    assert ran.out.endswith("As of the last step: constant-reward.\n")
    ConfigStore().save(run / "config.yaml")
    ran = turnwise("doctor", str(run))
    assert ran.out.splitlines()[-1] == (
        f"Change settings and resume: turnwise train '{run}' section.name=value"
    )


def test_causes_with_what_follows_from_them(turnwise, tmp_path):
    run = write_run(tmp_path / "mine", cut_turns=1.0, tokens_per_turn=16.0)
    lines = turnwise("doctor", str(run)).out.splitlines()
    assert lines[0] == "step 5     cut-turns"
    assert lines[1].startswith("  100% of the model's turns were cut by the limit of tokens")
    assert lines[2].startswith("  because of this: constant-reward. All episodes of the last 5")
    assert lines[3].startswith("  fix: Raise inference.max_tokens")
    assert lines[-1] == "As of the last step: cut-turns."
    (now,) = json.loads(turnwise("doctor", str(run), "--json").out)["now"]
    assert [one["code"] for one in now["consequences"]] == ["constant-reward"]


def test_a_run_that_stopped_in_its_first_step(turnwise, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    status = {"status": "stopped: every episode failed\nTraceback", "step": 0, "num_steps": 3}
    (folder / "run.json").write_text(json.dumps(status))
    ran = turnwise("doctor", str(folder))
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "stopped"
    assert lines[1] == "  After step 0 the run stopped: every episode failed"
    assert lines[-2:] == [f"{folder}: no step was finished", "As of the last step: stopped."]


def test_a_sound_run(turnwise, tmp_path):
    run = write_run(tmp_path / "mine", reward=0.5, reward_std=0.5, success=0.5)
    ran = turnwise("doctor", str(run / "metrics.jsonl"))
    said = " ".join(ran.out.split())
    assert said.startswith(f"{run}/metrics.jsonl: 30 steps; success 0.500 after step 30")
    assert ran.out.endswith("As of the last step: nothing wrong.\n")


def test_a_run_for_programs(turnwise, tmp_path):
    ran = turnwise("doctor", str(write_run(tmp_path / "mine", num_steps=60)), "--json")
    told = json.loads(ran.out)
    assert [(found["step"], found["code"]) for found in told["findings"]] == [
        (5, "constant-reward"),
        (55, "constant-reward"),
    ]
    assert [finding["code"] for finding in told["now"]] == ["constant-reward"]
    assert told["num_steps"] == 60
    assert told["last"]["step"] == 60


def test_a_run_that_was_killed_while_it_wrote(turnwise, tmp_path):
    run = write_run(tmp_path / "mine")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 31, "rew')
    assert f"{run}: 30 steps" in turnwise("doctor", str(run)).out
    fresh = turnwise("doctor", str(write_run(tmp_path / "fresh", num_steps=0)))
    assert (fresh.code, "no step of this run was finished yet" in fresh.err) == (2, True)
