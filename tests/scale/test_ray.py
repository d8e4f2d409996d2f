"""Real Ray: the run of one process, by several; also when they die."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

import turnwise
from scale.rayed import (
    ON_RAY,
    PPO,
    AlwaysDeadly,
    Deadly,
    arm,
    chats,
    echoes,
    largest_difference,
    lay_fuses,
    train,
)
from trainer.runs import Listener, episodes, metrics_of
from trainer.worlds import Echo, Memory, small_model, small_trainer
from turnwise import Levels, RewardBatch
from turnwise.errors import ConfigError, TrainingStopped, import_extra
from turnwise.scale.ray.cluster import exported_python_path

ray = import_extra("ray", "ray")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One for all tests: trainers use the one that is there, and leave it running."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Else only this process would have the token of the cluster.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    # A short path: sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as own:
        yield from running(own)


def running(folder):
    with exported_python_path():
        ray.init(
            address="local",
            num_cpus=4,
            object_store_memory=256 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
        )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same run in one process."""
    return train(tmp_path_factory.mktemp("alone"), Memory)


def comparable(metrics):
    return {name: x for name, x in metrics.items() if not name.startswith("time/")}


def assert_same_training(run, other):
    histories = ([comparable(metrics) for metrics in history] for history in (run[0], other[0]))
    for ours, theirs in zip(*histories, strict=True):
        assert ours.keys() == theirs.keys()
        for name, number in ours.items():
            assert number == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
    assert largest_difference(run[1], other[1]) < 1e-5


def tokens_and_versions(folder):
    """Of every turn that was trained on: what was sampled, and by which weights."""
    return {
        step: [
            (agent["ids"], [(turn["tokens"], turn["weight_version"]) for turn in agent["turns"]])
            for episode in played
            for agent in episode["agents"]
        ]
        for step, played in episodes(folder).items()
    }


def saved_model(folder):
    """A setting: the model in files, from which learners load it in parts."""
    for part in small_model():
        part.save_pretrained(folder / "model")
    return f"model.local_path={folder / 'model'}"


def test_two_players_and_two_learners_do_what_one_process_does(tmp_path, alone):
    run = train(tmp_path, Memory, *ON_RAY, saved_model(tmp_path), model=None, tokenizer=None)
    assert_same_training(run, alone)
    assert tokens_and_versions(run[2]) == tokens_and_versions(alone[2])
    versions = {v for turns in tokens_and_versions(run[2]).values() for _, t in turns for _, v in t}
    assert versions == {1, 2, 3}  # the warm start's, then one more with each step
    assert ray.is_initialized()


def test_a_reward_function_of_batches_is_called_here_with_all_workers_episodes(tmp_path):
    calls = []

    def score(data: RewardBatch) -> list[float]:
        calls.append(os.getpid())
        return [float(row) for row in range(len(data))]

    settings = (*PPO, "training.warm_start=null", "ray.use_ray=true", "ray.num_actors=2")
    with small_trainer(tmp_path, Memory, *settings, reward_fn=score) as trainer:
        played = trainer.rollout()
        assert trainer.train_step(played)["reward"] == 2.5
    assert [result.reward.total for result in played] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert calls == [os.getpid()]


def one_more(data: RewardBatch) -> list[float]:
    return [sum(one.rewards) + 1 for one in data.non_tensor_batch["trajectory"]]


def test_a_mix_of_environments_with_compaction_is_what_one_process_plays(tmp_path):
    def mix():
        levels = Levels([{"number": 1}, {"number": 2}], up=0.1, down=0.0)
        return [
            {"environment": Memory, "weight": 2, "curriculum": levels},
            {"environment": Echo, "reward": one_more, "system_prompt": "Say it."},
        ]

    settings = (
        *("training.adv_estimator=grpo", "training.group_size=2", "training.batch_size=3"),
        *("limits.max_context_tokens=1", "inference.summary_prompt=So far?"),
    )
    alone = train(tmp_path / "alone", None, *settings, environments=mix())
    run = train(tmp_path / "ray", None, *settings, *ON_RAY, environments=mix())
    assert_same_training(run, alone)
    assert tokens_and_versions(run[2]) == tokens_and_versions(alone[2])
    kinds = [
        turn["kind"]
        for played in episodes(run[2]).values()
        for episode in played
        for turn in episode["agents"][0]["turns"]
        if episode["part"] == "Memory"
    ]
    assert kinds == ["action", "summary", "action", "summary", "action"] * (len(kinds) // 5)
    assert [m["Memory/num_groups"] for m in metrics_of(run[2])] == [2, 2, 2]
    assert all(1 <= m["Echo/reward"] <= 2 for m in metrics_of(run[2]))


def test_an_agent_is_what_one_process_plays_also_when_workers_die(tmp_path):
    """Each episode worker has a gateway of its own."""
    rows = [{"word": word, "fuses": str(tmp_path)} for word in ("left", "right", "up")]
    given = {"agent": chats, "expert": echoes, "dataset": rows}
    settings = ("training.batch_size=3", "training.warm_start=expert", "training.num_epochs=2")
    alone = train(tmp_path / "alone", None, *settings, **given)
    lay_fuses(tmp_path, "agent", 2)
    run = train(tmp_path / "ray", None, *settings, *ON_RAY, **given)
    assert not list(tmp_path.glob("agent-*"))
    assert_same_training(run, alone)
    assert tokens_and_versions(run[2]) == tokens_and_versions(alone[2])


def test_who_is_killed_is_replaced_and_nothing_is_lost_or_counted_twice(tmp_path, alone):
    fuses = tmp_path / "fuses"
    fuses.mkdir()
    lay_fuses(fuses, "episode0", 1)
    lay_fuses(fuses, "episode2", 1)
    lay_fuses(fuses, "update", 1)
    armed = f"environment.params.fuses={fuses}"
    run = train(tmp_path / "run", Deadly, *ON_RAY, armed, before=arm(fuses))
    assert not list(fuses.iterdir())
    assert_same_training(run, alone)
    assert [m["num_episodes"] for m in metrics_of(run[2])] == [6, 6, 6]
    log = (run[2] / "log.txt").read_text()
    assert len(re.findall(r"WARNING episode worker \d was lost and is replaced: ", log)) == 2
    assert log.count("WARNING a learner was lost and is replaced: ") == 1
    assert re.search(
        r"WARNING episode worker \d: Deadly\.close\(\) failed: .*the door is stuck", log
    )


def test_a_run_that_only_loses_workers_ends_and_says_why(tmp_path):
    with pytest.raises(TrainingStopped, match=r"2 workers were lost.*max_failures is 1"):
        train(
            tmp_path,
            AlwaysDeadly,
            *("training.warm_start=null", "ray.use_ray=true", "ray.max_failures=1"),
        )


def test_a_checkpoint_moves_between_numbers_of_learners_and_one_process(tmp_path):
    folder = saved_model(tmp_path)
    settings = (folder, "training.steps_per_epoch=4")
    options = {"model": None, "tokenizer": None}
    expected = train(tmp_path / "alone", Memory, *settings, **options)
    split = (*ON_RAY, "ray.context_parallel_size=2")
    places = [ON_RAY, ("ray.use_ray=true",), (), split]  # one step in each
    for step, overrides in enumerate(places, 1):
        last = ("step", step if step < len(places) else 0)
        stopping = Listener(lambda *moment, last=last: moment == last)
        try:
            run = train(tmp_path, Memory, *settings, *overrides, reporter=stopping, **options)
        except KeyboardInterrupt:
            assert stopping.outcomes == ["interrupted"]
        assert stopping.run.first_step == step - 1
    assert_same_training(run, expected)


def seeds_of(folder):
    return Counter(e["seed"] for key, played in episodes(folder).items() for e in played)


def test_asynchronous_training_loses_no_episode_also_when_workers_die(tmp_path):
    more = ("training.num_epochs=2", "training.eval_episodes=2")
    _, _, alone = train(tmp_path / "alone", Memory, *more)
    fuses = tmp_path / "fuses"
    fuses.mkdir()
    lay_fuses(fuses, "episode0", 1)
    lay_fuses(fuses, "episode2", 1)
    armed = f"environment.params.fuses={fuses}"
    stale = (*ON_RAY, *more, "training.max_staleness=2", armed)
    history, weights, folder = train(tmp_path / "run", Deadly, *stale)
    assert not list(fuses.iterdir())
    assert seeds_of(folder) == seeds_of(alone)  # each task once, as in turns
    behind = [metrics.get("weights_behind", 0) for metrics in history]
    assert behind[0] == 0
    assert 1 <= max(behind) <= 2
    assert all(m["num_episodes"] == 6 and m["num_steps"] and not m["errors"] for m in history)
    assert all(bool(x.isfinite().all()) for x in weights.values())
    log = (folder / "log.txt").read_text()
    assert len(re.findall(r"WARNING episode worker \d was lost and is replaced: ", log)) == 2


SCRIPT = """
import os, sys
from turnwise import BaseEnvironment, ConfigStore, Trainer
from turnwise.tools import ActionParser, ParseResult, ToolCall

CALLS = sys.argv[1] + "/calls.txt"
with open(os.path.dirname(sys.argv[1]) + "/executed.txt", "a") as file:
    file.write(f"{os.getpid()}\\n")

class Coin(BaseEnvironment):
    "Defined in the script itself."
    def reset(self):
        self._done = False
        return "heads or tails?"
    def step(self, action):
        self._done = True
        return "", 0.0, True, {"pid": os.getpid()}
    def get_state_description(self):
        return "a coin"

def toss(side: str) -> str:
    "Toss the coin."
    with open(CALLS, "a") as file:
        file.write(f"{os.getpid()}\\n")
    return side

class Eager(ActionParser):
    "Whatever is said means a toss; every other time it is just said."
    num_parsed = 0
    def parse(self, text):
        self.num_parsed += 1
        if self.num_parsed % 2:
            return ParseResult([ToolCall("toss", {"side": "heads"})])
        return ParseResult(text=text)
    def render(self, call):
        return "toss"

def reward(trajectory):
    return 1.0 + len(trajectory.actions)

if __name__ == "__main__":
    os.makedirs(sys.argv[1])
    config = ConfigStore.load(overrides=[
        f"checkpoint.output_dir={sys.argv[1]}", "ray.use_ray=true", "training.batch_size=2",
        "training.num_epochs=1", "training.steps_per_epoch=1", "inference.max_tokens=2",
        "inference.max_turns=3", "training.adv_estimator=reinforce_plus_plus", *sys.argv[2:]])
    with Trainer(config, Coin, reward, tools=[toss], parser=Eager()) as trainer:
        (metrics,) = trainer.fit()
        pids = trainer.components.engine.pool.pids()
        print("pids", os.getpid(), *pids)
        assert metrics["num_episodes"] == 2 and metrics["reward"] > 0
    import ray
    assert not ray.is_initialized()
"""


def run_script(folder, text, *overrides):
    """The processes that the script had: its own, and its episode workers."""
    script = folder / "script.py"
    script.write_text(text)
    result = subprocess.run(
        [sys.executable, str(script), str(folder / "runs"), *overrides],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={
            "PYTHONPATH": str(Path(turnwise.__file__).parents[1]),
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/tmp"),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", ""),
            "OMP_NUM_THREADS": "1",
            "RAY_worker_niceness": "0",
            "RAY_AUTH_MODE": os.environ["RAY_AUTH_MODE"],
        },
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("pids")]
    driver, *workers = (int(word) for word in line.split()[1:])
    called = {int(pid) for pid in (folder / "runs" / "calls.txt").read_text().split()}
    assert (folder / "executed.txt").read_text().split() == [str(driver)]  # by no worker
    assert called
    assert called <= set(workers)
    assert driver not in workers
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "a worker outlived its run"
        time.sleep(0.1)


def test_environment_reward_and_tools_of_a_script_work_on_a_cluster_that_is_then_stopped(tmp_path):
    run_script(tmp_path, SCRIPT)


def test_a_cluster_that_is_there_is_used_by_its_address_and_left_running(tmp_path):
    address = ray.get_runtime_context().gcs_address
    unguarded = SCRIPT.replace('if __name__ == "__main__":', "if True:")
    run_script(tmp_path, unguarded, f"ray.address={address}")
    deadline = time.monotonic() + 120
    while ray.available_resources().get("CPU") != 4:
        assert time.monotonic() < deadline, "the places were not given back"
        time.sleep(0.1)


def test_too_few_gpus_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr("turnwise.scale.ray.cluster._PLACEMENT_SECONDS", 1.0)
    with pytest.raises(ConfigError, match="2 workers need 2 CPUs and 4 GPUs, and it has 4 CPUs"):
        train(tmp_path, Memory, "ray.use_ray=true", "ray.gpus_per_worker=2")


def test_a_global_that_cannot_be_sent_is_told(tmp_path, monkeypatch):
    (tmp_path / "locked.py").write_text(
        "import threading\n"
        "from trainer.worlds import Memory\n\n"
        "LOCK = threading.Lock()\n\n\n"
        "class Locked(Memory):\n"
        "    def step(self, action):\n"
        "        with LOCK:\n"
        "            return super().step(action)\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = ("environment.name=locked.py:Locked", "ray.use_ray=true", "ray.num_actors=1")
    trainer = small_trainer(tmp_path, None, *settings)
    with pytest.raises(ConfigError, match=r"cannot pickle '_thread.lock'") as error, trainer:
        trainer.fit()
    assert "Serializing" not in str(error.value)
