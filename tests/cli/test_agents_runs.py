"""Commands on the run of an agent: training from a file, evaluation, other agents."""

import json
import sys
from pathlib import Path

import pytest

from cli.conftest import figures
from turnwise import Trainer

AGENTS = """
import json
import urllib.request


def say(llm, text):
    body = {"model": llm.model, "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(
        f"{llm.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {llm.api_key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def echo(task, llm):
    return {"success": say(llm, f"Say {task['word']}") == task["word"]}


async def asks_twice(task, llm):
    return float(len([say(llm, "a"), say(llm, "b")]))


def expert(messages, tools):
    return messages[-1]["content"].removeprefix("Say ")
"""
COMMAND = f"""{sys.executable} -c '
import os
open(os.environ["TURNWISE_REWARD_FILE"], "w").write("0.25")
'"""
SETTINGS = {
    "agent": "agents.py:echo",
    "expert": "agents.py:expert",
    "dataset": "tasks.jsonl",
    "inference": {"max_tokens": 8},
    "training": {"batch_size": 4, "num_epochs": 1, "warm_start": "expert", "warm_start_steps": 2},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with a trained agent: its code, its tasks, its settings, its run."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("agents.py").write_text(AGENTS)
        rows = [{"word": word} for word in ("left", "right", "up", "down")]
        Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path("run.yaml").write_text(json.dumps(SETTINGS))
        with Trainer("run.yaml", reporter=None) as trainer:
            trainer.fit()
    return folder


@pytest.fixture(autouse=True)
def _there(project, monkeypatch):
    monkeypatch.chdir(project)


def played(turnwise, *arguments):
    return figures(turnwise, *arguments, "--episodes", "4")


def test_a_run_is_evaluated_with_its_agent_next_to_the_expert(turnwise, monkeypatch):
    found = played(turnwise, "runs/echo")
    assert found["environment"] == "agents.py:echo"
    assert found["evaluated_on"] == "4 training rows"
    assert found["expert"]["success"] == 1.0
    assert found["model"]["turns"] == 1
    assert "random" not in found
    shown = turnwise("eval", "runs/echo", "--episodes", "4").out
    assert shown.startswith("runs/echo on agents.py:echo, 4 episodes on 4 training rows")
    monkeypatch.chdir("runs")  # the code is found from anywhere
    assert played(turnwise, "echo")["model"] == found["model"]
    assert played(turnwise, "echo", "--agent", "expert")["agent"]["success"] == 1.0


def test_another_agent_does_the_runs_tasks_with_its_model(turnwise):
    found = played(turnwise, "runs/echo", "--agent", "agents.py:asks_twice")
    assert (found["model"]["reward"], found["model"]["turns"]) == (2.0, 2.0)
    assert "expert" not in found, "it belongs to the other agent"
    found = played(turnwise, "tiny", "--agent", "agents.py:echo", "--dataset", "tasks.jsonl")
    assert found["model"]["success"] == 0.0
    assert found["evaluated_on"] == "4 rows of the evaluation dataset"
    assert played(turnwise, "tiny", "--agent", COMMAND)["model"]["reward"] == 0.25


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["eval", "runs/echo", "--agent", "random"], "has no such player"),
        (["eval", "runs/echo", "--tool", "calculator"], "agent and tools are both given"),
        (["eval", "runs/echo", "--param", "size=3"], "agent and environment are both given"),
        (["eval", "--agent", "agents.py:echo"], "does not say what to play"),
        (["eval", "tiny", "--agent", "agents.py:ecko"], "Did you mean 'echo'?"),
        (["play", "runs/echo"], "the agent echo, which has no environment. turnwise eval plays"),
        (["check-env", "runs/echo"], "the agent agents.py:echo, which has no environment"),
        (["train", "agnet=agents.py:echo"], "for example agent=agents.py:echo"),
        (["eval", "tiny", "--agent", "agents.py"], "Write agents.py:name for a function of"),
        (["train", "agent=agents.py:ecko"], "Did you mean 'echo'?"),
        (["train", "run.yaml", "tools=[calculator]"], "agent and tools are both given"),
    ],
)
def test_what_does_not_fit_an_agent_is_a_message(turnwise, arguments, problem):
    ran = turnwise(*arguments)
    assert ran.code == 2
    assert problem in ran.err
    assert "Traceback" not in ran.err


def test_training_from_a_file_ends_with_commands_that_fit(turnwise):
    ran = turnwise("train", "run.yaml", "checkpoint.run_name=second", "training.warm_start=null")
    assert ran.code == 0, ran.err
    assert "turnwise serve runs/second" in ran.out
    assert "turnwise play" not in ran.out


def test_the_model_card_names_the_agent(turnwise):
    assert turnwise("export", "runs/echo", "exported").code == 0
    assert "agents.py:echo" in Path("exported/README.md").read_text()
