"""`turnwise serve-env`, with OpenEnv's own clients and validator, and with our adapter."""

import asyncio
import json
import subprocess
from pathlib import Path

import httpx2
import pytest
import websockets

from turnwise import make_environment, play_episode, random_player
from turnwise.env import OpenEnvEnvironment, expert_player
from turnwise.env.adapters.openenv_server import task_rows


def test_openenvs_client_plays_text(seen):
    first, lower, wrong, unicode, state, *rest = seen["text"]
    assert first["observation"]["text"] == "Guess a number from 0 to 1023."
    assert first["reward"] is None
    assert lower["observation"]["text"] in ("lower", "higher")
    for reply in (wrong, unicode):
        assert reply["observation"]["metadata"] == {"invalid_action": True}
        assert (reply["reward"], reply["done"]) == (0.0, False)
    assert state == {"steps": 3}
    assert rest[:5] == [first, lower, wrong, unicode, state]  # the same seed
    assert all("VALIDATION_ERROR" in error for error in rest[5:])
    assert len(rest[5:]) == 3


def test_openenvs_mcp_client_calls_tools(seen):
    tools = seen["tools"]
    assert tools["listed"] == ["environment_step", "look"]
    assert tools["first"] == "Dig."
    assert {tools["value"], tools["looked"]["observation"]["result"]} == {"gold", "sand"}
    assert "place" in tools["refused"]
    found = tools["looked"]["observation"]["result"] == "gold"
    assert (tools["dug"]["reward"], tools["dug"]["done"]) == (float(found), True)


def test_openenvs_client_selects_tasks(seen):
    tasks = seen["tasks"]
    assert (tasks["name"], tasks["num_tasks"]) == ("Plain", 2)
    assert tasks["text"] == "Dig, not north."
    assert "expected 0 to 1, got 9" in tasks["refused"]


def test_sessions_are_limited(seen):
    refused = [text for text in seen["many"] if "refused" in text]
    assert len(refused) == 1
    assert "CAPACITY_REACHED" in refused[0]
    assert {text for text in seen["many"] if text not in refused} <= {"higher", "lower"}


@pytest.mark.parametrize("name", ["text", "tools"])
def test_openenv_validates_it(openenv_python, served, name):
    command = [str(Path(openenv_python).with_name("openenv")), "validate", "--url", served[name]]
    ran = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(ran.stdout)
    assert report["passed"]
    assert report["standard_profile"] == "openenv-http/1.x"


def replay(actions):
    """A player that takes these actions."""
    left = iter(actions)
    return lambda env, observation: next(left)


@pytest.mark.parametrize("player", [expert_player, random_player(3)])
def test_our_adapter_sees_the_same_as_without_a_server(served, player):
    local, remote = make_environment("guess-number"), OpenEnvEnvironment(served["text"])
    for seed in range(5):
        here = play_episode(local, player, seed=seed)
        there = play_episode(remote, replay(here.actions), seed=seed)
        assert there.prompts == here.prompts
        for field in ("observations", "rewards", "dones", "infos"):
            assert getattr(there, field) == getattr(here, field)


def test_our_adapter_calls_its_tools(served):
    remote = OpenEnvEnvironment(served["tools"])
    assert [tool.name for tool in remote.get_tools()] == ["environment_step", "look"]
    assert task_rows(served["tasks"], "train")[1] == {
        "split": "train",
        "index": 1,
        "task": {"where": "south", "not": "north"},
    }


def test_an_environment_that_raises_is_an_error_of_its_session(served):
    step = {"tool_name": "environment_step", "arguments": {"action": "explode"}}
    messages = [
        "no json",
        "[]",
        {"type": "nothing"},
        {"type": "step", "data": {"message": "before a reset"}},
        {"type": "reset", "data": {"seed": "three"}},
        {"type": "reset"},
        {"type": "step", "data": {"type": "call_tool", **step}},
        {"type": "state"},
    ]

    async def talk():
        url = served["tools"].replace("http", "ws") + "/ws"
        async with websockets.connect(url) as socket:
            answers = []
            for message in messages:
                is_text = isinstance(message, str)
                await socket.send(message if is_text else json.dumps(message))
                answers.append(json.loads(await socket.recv()))
            await socket.send(json.dumps({"type": "close"}))
            await socket.wait_closed()
            return answers

    answers = asyncio.run(talk())
    codes = [answer["data"].get("code") for answer in answers]
    assert codes == [
        *("INVALID_JSON", "UNKNOWN_TYPE", "UNKNOWN_TYPE", "VALIDATION_ERROR", "VALIDATION_ERROR"),
        *(None, "EXECUTION_ERROR", None),
    ]
    assert "boom" in answers[6]["data"]["message"]


def test_pages_of_other_sites_are_refused(served):
    url = served["text"]
    headers = {"origin": "https://evil.example"}
    assert httpx2.get(f"{url}/schema", headers=headers).status_code == 403
    assert httpx2.get(f"{url}/schema").status_code == 200

    async def connect():
        async with websockets.connect(
            url.replace("http", "ws") + "/ws", additional_headers=headers
        ):
            pass

    with pytest.raises(websockets.exceptions.InvalidStatus):
        asyncio.run(connect())
