"""Agents trained through `Trainer`: files of the run, names, errors, and what is left behind."""

import importlib
import json
import sys
import threading

import pytest
import torch
import yaml

from agents.serving import ask
from turnwise import BaseEnvironment, ConfigError, ConfigStore, Trainer
from turnwise.errors import MissingExtraError, TrainingStopped
from turnwise.reward import RewardBatch
from turnwise.runs.run_folder import RunFolder
from turnwise.trainer.replay import replay_run

ROWS = [{"word": word, "number": number} for number, word in enumerate(["left", "right", "up"])]
COMMAND = f"""{sys.executable} -c '
import json, os, urllib.request
body = {{{{"model": "policy", "messages": [{{{{"role": "user", "content": "{{word}}"}}}}]}}}}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {{{{"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}}},
)
text = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
with open(os.environ["TURNWISE_REWARD_FILE"], "w") as file:
    json.dump({{{{"length": len(text) / 8, "success": True}}}}, file)
'"""


def say(llm, text):
    body = {"model": llm.model, "messages": [{"role": "user", "content": text}]}
    status, answer = ask(llm, "/chat/completions", body)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"]


async def chatty(task, llm):
    """Two conversations; long answers are good."""
    first = say(llm, f"Say {task['word']}")
    return (len(first) + len(say(llm, "again"))) / 16


def seeded(task, llm):
    return float(len(say(llm, str(task["seed"]))))


def settings(folder, **training):
    training = {"batch_size": 2, "group_size": 2, "adv_estimator": "grpo", **training}
    return {
        "inference": {"max_tokens": 4},
        "training": {"num_epochs": 1, "steps_per_epoch": 2, **training},
        "checkpoint": {"output_dir": str(folder)},
    }


def trained(config, **given):
    with Trainer(config, reporter=None, **given) as trainer:
        history = trainer.fit()
        weights = trainer.components.learner.model.policy.state_dict()
        weights = {name: tensor.clone() for name, tensor in weights.items()}
    return RunFolder(trainer.run_folder), history, weights


def test_an_agent_is_trained_and_recorded_under_its_name(tmp_path):
    before = set(threading.enumerate())
    config = settings(tmp_path, eval_episodes=2)
    folder, history, _ = trained(config, agent=chatty, dataset=ROWS)
    assert folder.path.name == "chatty" == folder.status["environment"]
    assert [row["num_episodes"] for row in history] == [4, 4]
    assert all(row["errors"] == 0 and row["turns"] == 2 for row in history)
    assert any(row["grad_norm"] > 0 for row in history)
    assert history[-1]["gap_max"] < 1e-4, "exact tokens, in both branches"
    assert history[-1]["eval/greedy/num_episodes"] == 2
    settled = yaml.safe_load((folder.path / "config.yaml").read_text())
    assert settled["agent"].endswith("test_training:chatty")
    assert "environment" not in settled
    assert folder.status["identity"]["agent"]
    assert set(threading.enumerate()) == before, "the gateway's thread has ended"


def test_in_yaml_it_is_the_same_run(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    _, _, ours = trained(settings(tmp_path / "python"), agent=chatty, dataset=ROWS)
    named = f"{__file__}:chatty"
    config = {**settings(tmp_path / "yaml"), "agent": named, "dataset": str(rows)}
    folder, _, theirs = trained(config)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert folder.path.name == "chatty"


def test_an_asynchronous_run_and_its_replay(tmp_path):
    config = settings(tmp_path, num_epochs=2, max_staleness=2)
    folder, history, _ = trained(config, agent=chatty, dataset=ROWS)
    assert [row["num_episodes"] for row in history] == [4] * 4
    assert all(row["errors"] == 0 and row["turns"] == 2 for row in history)
    assert max(row.get("weights_behind", 0) for row in history) <= 2
    again = ConfigStore.load(folder.path / "config.yaml", ["checkpoint.run_name=again"])
    outcome = replay_run(folder.path, again)
    assert (outcome.num_equal, outcome.equal_checkpoints) == (4, [2, 4]), "with both branches"


def test_a_command_with_a_reward_file(tmp_path):
    folder, history, _ = trained({**settings(tmp_path), "agent": COMMAND}, dataset=ROWS)
    assert history[-1]["reward/length"] > 0
    assert history[-1]["success"] == 1.0
    assert ConfigStore.load(folder.path / "config.yaml").agent == COMMAND


def test_without_a_dataset_the_task_is_a_seed_and_reward_fn_scores_the_result(tmp_path):
    seen = []

    def reward(trajectory):
        seen.append(trajectory.task["seed"])
        return trajectory.result / 10

    _, history, _ = trained(settings(tmp_path), agent=seeded, reward_fn=reward)
    assert len(set(seen)) == 4, "two seeds a step, each played twice"
    assert history[-1]["reward"] > 0


def test_changed_code_begins_another_run(tmp_path):
    def began(problem):
        file = tmp_path / "mine.py"
        file.write_text(f"def mine(task, llm):\n    raise ValueError({problem!r})\n")
        config = {**settings(tmp_path / "runs"), "agent": f"{file}:mine"}
        with Trainer(config, reporter=None) as trainer, pytest.raises(TrainingStopped):
            trainer.fit()
        return trainer.run_folder.name

    assert [began("a"), began("a"), began("another")] == ["mine", "mine", "mine-2"]


class Game(BaseEnvironment):
    def reset(self): ...
    def step(self, action): ...
    def get_state_description(self): ...


def of_batches(data: RewardBatch): ...


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"environment": Game}, "agent= and environment= are both given"),
        ({"environments": [Game]}, "agent= and environments= are both given"),
        ({"tools": [say]}, "agent= and tools= are both given"),
        ({"system_prompt": "Be brief."}, "agent= and system_prompt= are both given"),
        ({"config": {"environments": ["guess-number"]}}, "a mix of environments are both given"),
        ({"config": {"agent": "x:y", "tools": ["calculator"]}}, "agent and tools are both given"),
        (
            {"config": {"agent": "x:y", "environment": {"name": "grid-world"}}},
            "agent and environment",
        ),
        ({"agent": "  "}, "expected a function of (task, llm)"),
        ({"agent": "nowhere.py:agent"}, "there is no file nowhere.py"),
    ],
)
def test_what_cannot_go_together_is_refused(given, problem):
    with pytest.raises(ConfigError) as caught:
        Trainer(**{"agent": chatty, "reporter": None, **given})
    assert problem in str(caught.value)


def test_a_reward_of_batches_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="may have several conversations"):
        trained(settings(tmp_path), agent=chatty, reward_fn=of_batches)


def test_a_missing_extra_names_its_install_line(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("turnwise.agents")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'turnwise\[agents\]'"):
        Trainer(agent=chatty, reporter=None)
    monkeypatch.undo()
    importlib.import_module("turnwise.agents")
