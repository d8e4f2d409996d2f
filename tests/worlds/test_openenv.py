"""`openenv:URL`, a folder or a command, on servers that are written with OpenEnv's own package."""

import asyncio
import json
import shlex
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from websockets.sync.server import serve

from turnwise import EpisodeCollector, check_env, create_inference_engine, play_episode
from turnwise.config import DatasetConfig
from turnwise.data.dataset import dataset_by_name
from turnwise.env import OpenEnvEnvironment, environment_factory
from turnwise.env.adapters import openenv_server
from turnwise.episode import CollectorOptions, EpisodeLimits, EpisodeTask
from turnwise.errors import ConfigError, EnvironmentFault
from turnwise.types import EpisodeStatus
from worlds.conftest import HERE


def played(name, policy, seeds, limits=None):
    """Episodes of a scripted model."""
    engine = create_inference_engine("tiny", "scripted", policy=policy)
    limits = EpisodeLimits(**limits or {})
    options = {"num_retries": 0, "limits": limits}
    collector = EpisodeCollector(engine, f"openenv:{name}", CollectorOptions(**options))
    tasks = [EpisodeTask(seed=seed, group=seed) for seed in seeds]
    return asyncio.run(collector.play(tasks))


def call(name, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


# -- what an action is -----------------------------------------------------------------------------


def test_the_reply_is_the_only_field(worlds):
    env = OpenEnvEnvironment(f"{worlds}/repeat")
    trajectory = play_episode(env, lambda env, seen: seen, seed=7)
    assert trajectory.prompts == ["Say the letter that you read.", trajectory.observations[0]]
    assert trajectory.rewards == [0.0, 1.0]  # None before the end
    assert trajectory.status is EpisodeStatus.DONE
    assert env.get_tools() == []
    assert json.loads(env.get_state_description().partition("\n")[2]) == {"letter": env._seen}


def test_the_seed_is_ours(worlds):
    def letters():
        env = OpenEnvEnvironment(f"{worlds}/repeat")
        return [play_episode(env, lambda _, seen: seen, seed=s).observations[0] for s in range(20)]

    assert letters() == letters()
    assert set(letters()) == set("abcä")
    big = 2**62 + 5
    first, second = (
        play_episode(OpenEnvEnvironment(f"{worlds}/repeat"), lambda _, seen: seen, seed=big)
        for _ in range(2)
    )
    assert first == second


def test_a_field_that_is_no_text(worlds):
    env = OpenEnvEnvironment(f"{worlds}/count", start=4)  # an argument of the server's reset
    replies = iter(["five", "5"])
    trajectory = play_episode(env, lambda *_: next(replies), seed=1)
    assert trajectory.infos[0] == {"invalid_action": True}
    assert "number" in trajectory.observations[0]
    assert trajectory.rewards == [0.0, 1.0]


def test_several_fields_are_a_tool(worlds):
    def walk(text):
        if "goal: 3" in text:
            return call("act", direction="right", steps=3)
        return call("act", direction="left", steps=3)

    results = played(f"{worlds}/line", walk, range(4))
    assert [r.reward.total for r in results] == [1.0] * 4
    assert [len(r.responses) for r in results] == [1] * 4
    (tool,) = OpenEnvEnvironment(f"{worlds}/line").get_tools()
    assert tool.definition.signature == 'act(direction: "left"|"right", steps: integer = 1)'


def test_bad_arguments_and_replies_without_a_call(worlds):
    replies = iter([call("act", direction="up"), "I go left.", call("act", steps=1)])
    (result,) = played(f"{worlds}/line", lambda _: next(replies), [0], limits={"max_turns": 3})
    told = result.trajectory.observations
    assert "direction" in told[0]
    assert told[1] == "Invalid action: call the tool act."
    assert "direction" in told[2]
    assert result.status is EpisodeStatus.TRUNCATED_BY_TURNS


def test_the_tools_of_an_mcp_environment(worlds):
    def shop(text):
        if "costs" in text:
            return call("buy", item="tea", money=int(text.rpartition(" costs ")[2][0]))
        return call("price", item="tea")

    results = played(f"{worlds}/shop", shop, range(6))
    assert [r.reward.total for r in results] == [1.0] * 6
    assert all(r.trajectory.observations[-1] == "thank you" for r in results)
    assert all("Buy tea." in r.trajectory.prompts[1] for r in results)


def test_a_reply_without_a_call_ends_an_mcp_episode(worlds):
    (result,) = played(f"{worlds}/shop", lambda _: "I buy nothing.", [1])
    assert (result.status, result.reward.total) == (EpisodeStatus.DONE, 0.0)


def test_an_mcp_tool_that_fails_is_told(worlds):
    replies = iter([call("buy", item="tea"), call("sell"), "done"])
    (result,) = played(f"{worlds}/shop", lambda _: next(replies), [1])
    assert "money" in result.trajectory.observations[0]
    assert "no tool 'sell'" in result.trajectory.observations[1]


def test_one_field_of_an_observation(worlds):
    config = {"params": {"observation_field": "goal"}, "max_steps": 1}
    env = OpenEnvEnvironment(f"{worlds}/line", config)
    assert play_episode(env, lambda *_: "{}", seed=0).prompts[1] in ("3", "-3")
    env = OpenEnvEnvironment(f"{worlds}/line", observation_field="gaol")
    trajectory = play_episode(env, lambda *_: "{}", seed=0)
    assert "'gaol': metadata, position, goal" in trajectory.error


def test_it_passes_the_checks(worlds):
    report = check_env(f"openenv:{worlds}/repeat")
    assert report.ok, report


# -- tasks -----------------------------------------------------------------------------------------


def test_tasks_are_the_dataset(worlds):
    name = f"openenv:{worlds}/quiz"
    rows = dataset_by_name(DatasetConfig(path=name, split="test"), are_prompts=False)
    assert [row["task"]["letter"] for row in rows] == ["x", "y", "z"]
    assert rows[1] == {"split": "test", "index": 1, "task": {"letter": "y"}}
    engine = create_inference_engine(
        "tiny", "scripted", policy=lambda text: text.split("Say ")[1][0]
    )
    tasks = [EpisodeTask(seed=1, group=n, task=row) for n, row in enumerate(rows)]
    results = asyncio.run(EpisodeCollector(engine, name).play(tasks))
    assert [r.reward.total for r in results] == [1.0] * 3


@pytest.mark.parametrize(
    ("world", "split", "problem"),
    [
        ("quiz", None, "dataset.split got None.*Known: test, train"),
        ("quiz", "tset", "Did you mean 'test'"),
        ("repeat", None, "has no tasks.*Leave the dataset out"),
    ],
)
def test_a_split_that_is_not_there(worlds, world, split, problem):
    with pytest.raises(ConfigError, match=f"(?s){problem}"):
        openenv_server.task_rows(f"{worlds}/{world}", split)


# -- training --------------------------------------------------------------------------------------


def train(worlds, folder, *settings):
    command = [sys.executable, "-m", "turnwise", "train", *settings, "inference.max_tokens=4"]
    ran = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (run,) = (folder / "runs").iterdir()
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_learns_and_is_reproducible(worlds, tmp_path):
    settings = [f"openenv:{worlds}/letters", "training.batch_size=64", "training.max_steps=8"]
    settings += ["training.learning_rate=1e-3", "training.eval_episodes=0"]
    runs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        metrics = train(worlds, tmp_path / name, *settings)
        runs.append([row["reward"] for row in metrics if "reward" in row])
    assert runs[0] == runs[1]
    assert runs[0][-1] > runs[0][0] + 0.1, runs[0]


# -- servers that break ----------------------------------------------------------------------------


def test_sixty_four_at_once(worlds):
    results = played(f"{worlds}/repeat", lambda text: text.strip()[-1], range(64))
    assert [r.status for r in results] == [EpisodeStatus.DONE] * 64
    assert len({r.trajectory.observations[0] for r in results}) == 4


def test_episodes_wait_for_a_server_of_one_session(worlds):
    results = played(f"{worlds}/single", lambda text: text.strip()[-1], range(6))
    assert [r.status for r in results] == [EpisodeStatus.DONE] * 6


def test_a_step_that_raises_or_hangs_fails_its_episode(worlds):
    limits = {"step_timeout": 1.0}
    replies = {0: "crash", 1: "hang"}
    for seed, reply in replies.items():
        (result,) = played(f"{worlds}/repeat", lambda _, r=reply: r, [seed], limits=limits)
        assert result.status is EpisodeStatus.ENVIRONMENT_ERROR
        expected = "the world broke" if reply == "crash" else "limits.step_timeout"
        assert expected in result.trajectory.error


def test_a_reset_that_hangs_is_given_up(worlds):
    (result,) = played(f"{worlds}/slow", lambda _: "a", [1], limits={"reset_timeout": 1.0})
    assert result.status is EpisodeStatus.ENVIRONMENT_ERROR
    assert "limits.reset_timeout" in result.trajectory.error


def own_command(openenv_python):
    """A server of its own, which a test may kill, and a mark that its processes have."""
    mark = f"mark-{uuid.uuid4().hex}"
    return shlex.join([openenv_python, str(HERE / "openenv_worlds.py")]) + f" {{port}} {mark}", mark


def processes(mark):
    """The ids of the processes whose command line has a text."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def wait_until_gone(mark):
    deadline = time.monotonic() + 20
    while left := processes(mark):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)


def test_a_killed_server_fails_its_episodes_and_starts_again(openenv_python):
    command, mark = own_command(openenv_python)
    server = openenv_server.find_server(command)
    try:
        results = played(command, lambda _: "die", range(2), limits={"step_timeout": 20.0})
        assert {r.status for r in results} == {EpisodeStatus.ENVIRONMENT_ERROR}
        assert all("was lost" in r.trajectory.error for r in results), results
        results = played(command, lambda text: text.strip()[-1], range(3))
        assert [r.status for r in results] == [EpisodeStatus.DONE] * 3
    finally:
        server.close()
    wait_until_gone(mark)


def test_a_server_ends_with_a_killed_trainer(openenv_python, tmp_path):
    command, mark = own_command(openenv_python)
    code = (
        "import sys, time; from turnwise.env import OpenEnvEnvironment as E;"
        "E(sys.argv[1]); print('up', flush=True); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", code, command], stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout.readline() == b"up\n"
        assert len(processes(mark)) >= 2
        trainer.kill()
    wait_until_gone(mark)


def test_a_folder_is_started(openenv_python, tmp_path):
    (tmp_path / "openenv.yaml").write_text("name: line\napp: app:app\n")
    worlds = (HERE / "openenv_worlds.py").read_text()
    app = 'app = create_app(*WORLDS["repeat"], max_concurrent_envs=4)\n'
    (tmp_path / "app.py").write_text(worlds.partition("if __name__")[0] + app)
    make = environment_factory(f"openenv:{tmp_path}", {"params": {"python": openenv_python}})
    try:
        assert play_episode(make(), lambda _, seen: seen, seed=1).total_reward == 1.0
    finally:
        openenv_server.find_server(str(tmp_path), None, openenv_python).close()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("http://127.0.0.1:9", "there is no OpenEnv server at http://127.0.0.1:9"),
        ("nowhere", "no folder with an openenv.yaml"),
        ("false {port}", "ended with exit code 1"),
        ("sh -c 'echo no such {port} >&2; exit 3'", "exit code 3: no such"),
    ],
)
def test_a_server_that_is_not_there(source, problem):
    with pytest.raises((ConfigError, EnvironmentFault), match=problem):
        OpenEnvEnvironment(source)


def test_a_folder_without_a_python(tmp_path, monkeypatch):
    (tmp_path / "openenv.yaml").write_text("name: line\n")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"environment\.params\.python"):
        OpenEnvEnvironment(str(tmp_path))


# -- servers that are none -------------------------------------------------------------------------

WRONG = {
    "{nope": "answered what OpenEnv does not: JSONDecodeError",
    "[1]": "answered what OpenEnv does not: TypeError",
    b"\xff": "answered what OpenEnv does not: UnicodeDecodeError",
    '{"type": "error", "data": "no"}': "answered what OpenEnv does not: AttributeError",
    '{"type": "error", "data": {"message": "no"}}': "failed in its reset: no",
    '{"type": "observation", "data": null}': "expected {'type': 'observation', 'data':",
    None: "was lost: ConnectionClosed",
}


@pytest.fixture
def strange():
    """A server that answers every message with `strange.answer`; None closes the session."""
    bodies = {
        "/schema": {"action": {"properties": {"message": {"type": "string"}}}},
        "/metadata": {"name": "strange", "description": ""},
    }
    state = SimpleNamespace(answer=None, bodies=bodies)

    def answer_http(connection, request):
        if request.path == "/ws":
            return None
        return connection.respond(200, json.dumps(state.bodies.get(request.path)))

    def talk(socket):
        for _ in socket:
            if state.answer is None:
                return
            socket.send(state.answer)

    with serve(talk, "127.0.0.1", 0, process_request=answer_http) as server:
        state.url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield state
        server.shutdown()


@pytest.mark.parametrize("answer", WRONG)
def test_an_answer_that_is_wrong_is_an_error_of_the_episode(strange, answer):
    env = OpenEnvEnvironment(strange.url)
    strange.answer = answer
    trajectory = play_episode(env, lambda *_: "hello", seed=1)
    assert trajectory.status is EpisodeStatus.ENVIRONMENT_ERROR
    assert WRONG[answer] in trajectory.error


@pytest.mark.parametrize("schema", [None, [1], {"action": 3}, {"action": {"properties": [1]}}])
def test_a_schema_that_is_wrong(strange, schema):
    strange.bodies["/schema"] = schema
    with pytest.raises(ConfigError, match="does not answer as an OpenEnv server"):
        OpenEnvEnvironment(strange.url)


def test_a_variable_in_a_header(strange, monkeypatch):
    monkeypatch.setenv("WORLD_TOKEN", "secret")
    env = OpenEnvEnvironment(strange.url, headers={"Authorization": "Bearer $WORLD_TOKEN"})
    assert env._server.headers == {"Authorization": "Bearer secret"}
    assert "secret" not in str(env.config)
