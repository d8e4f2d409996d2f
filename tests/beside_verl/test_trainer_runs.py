"""VERL's own trainers, for real, on this CPU: a user's script run in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import turnwise
from turnwise.models import load_tokenizer

HERE = Path(__file__).parent
RECORD = "actor_rollout_ref.rollout.agent.agent_loop_manager_class=recording.RecordingManager"
NUM_EPISODES = 6
"""In one step of the script."""


@dataclass
class Ran:
    """What a run of the script left behind."""

    output: Path
    history: list[dict[str, Any]]

    @property
    def episodes(self) -> list[list[Any]]:
        """What each environment wrote down, in the order in which they closed."""
        lines = (self.output / "environments.jsonl").read_text().splitlines()
        return [json.loads(line)["events"] for line in lines]

    @property
    def batches(self) -> list[dict[str, torch.Tensor]]:
        return [torch.load(path) for path in sorted(self.output.glob("batch-*.pt"))]


def run_script(output: Path, engine: str, estimator: str, num_steps: int, *overrides: str) -> Ran:
    output.mkdir(exist_ok=True)
    source = str(Path(turnwise.__file__).parent.parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([source, str(HERE)]),
        "RECORDED": str(output),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HERE / "user_script.py"), engine, str(output), estimator]
    result = subprocess.run(
        [*command, str(num_steps), *overrides],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    return Ran(output, json.loads((output / "history.json").read_text()))


@pytest.fixture(scope="module")
def grpo(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_script(tmp_path_factory.mktemp("grpo"), "verl", "grpo", 2, f"++{RECORD}")


@pytest.fixture(scope="module")
def ppo(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_script(tmp_path_factory.mktemp("ppo"), "verl", "gae", 2, f"++{RECORD}")


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("v1")
    return run_script(folder, "verl", "grpo", 2, "trainer.use_v1=true")


def turns_of(batch: dict[str, torch.Tensor], row: int) -> list[tuple[str, str, float]]:
    """(what was sampled, what followed it, reward) of each turn, from the tokens VERL has."""
    tokenizer = load_tokenizer("tiny")
    mask = batch["response_mask"][row].tolist()
    length = int(batch["attention_mask"][row, -len(mask) :].sum())
    ids, scores = batch["responses"][row].tolist(), batch["rm_scores"][row].tolist()
    turns: list[tuple[str, str, float]] = []
    place = 0
    while place < length:
        assert mask[place] == 1, "a turn begins with a sampled token"
        end = next((i for i in range(place, length) if not mask[i]), length)
        after = next((i for i in range(end, length) if mask[i]), length)
        assert not any(scores[place : end - 1]), "a reward sits on the last token of its turn"
        assert not any(scores[end:after]), "nothing is earned by an observation"
        said = tokenizer.decode(ids[place:end], skip_special_tokens=True)
        turns.append((said, tokenizer.decode(ids[end:after]), scores[end - 1]))
        place = after
    assert not any(mask[length:])
    assert not any(scores[length:])
    return turns


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_every_token_that_verl_trains_on_was_sampled(
    name: str, request: pytest.FixtureRequest
) -> None:
    run: Ran = request.getfixturevalue(name)
    assert len(run.batches) == 2
    for step, batch in enumerate(run.batches):
        written = run.episodes[step * NUM_EPISODES : (step + 1) * NUM_EPISODES]
        trained = [turns_of(batch, row) for row in range(NUM_EPISODES)]
        # What was sampled, turn by turn, is what the environment and its tool were given, and
        # each reward is the reward function's for that turn.
        assert Counter(
            tuple((said, pytest_round(reward)) for said, _, reward in turns) for turns in trained
        ) == Counter(
            tuple((event[1], pytest_round(2 * event[2])) for event in events) for events in written
        )
        # What stands between is what they answered, and is not trained on.
        answers = {turns_key(turns): [after for _, after, _ in turns[:-1]] for turns in trained}
        for events in written:
            between = answers[tuple(event[1] for event in events)]
            for event, text in zip(events, between, strict=False):
                assert event[3] in text


def turns_key(turns: list[tuple[str, str, float]]) -> tuple[str, ...]:
    return tuple(said for said, _, _ in turns)


def pytest_round(number: float) -> float:
    return round(number, 4)


def test_tools_were_called(grpo: Ran) -> None:
    kinds = Counter(event[0] for events in grpo.episodes for event in events)
    assert kinds["tool"] > 0
    assert kinds["step"] > 0


@pytest.mark.parametrize("name", ["grpo", "ppo", "newer"])
def test_verls_scores_are_the_rewards_that_the_environments_gave(
    name: str, request: pytest.FixtureRequest
) -> None:
    run: Ran = request.getfixturevalue(name)
    assert [entry["step"] for entry in run.history] == [1, 2]
    for number, entry in enumerate(run.history):
        written = run.episodes[number * NUM_EPISODES : (number + 1) * NUM_EPISODES]
        mean = sum(2 * event[2] for events in written for event in events) / NUM_EPISODES
        assert entry["reward"] == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("name", ["grpo", "ppo", "newer"])
def test_the_learners_log_probs_are_those_of_the_sampling(
    name: str, request: pytest.FixtureRequest
) -> None:
    run: Ran = request.getfixturevalue(name)
    for entry in run.history:
        assert entry["training/rollout_probs_diff_max"] < 1e-4


def test_the_weights_move_and_reach_the_server(grpo: Ran) -> None:
    first, second = grpo.history
    assert first["actor/grad_norm"] > 0
    # The second step was sampled from the updated weights, or its log-probs would not agree.
    assert second["training/rollout_probs_diff_max"] < 1e-4
    assert first["actor/kl_loss"] == pytest.approx(0, abs=1e-6)
    assert second["actor/kl_loss"] > 0


def test_ppo_has_a_critic_that_learns(ppo: Ran) -> None:
    for entry in ppo.history:
        assert entry["critic/grad_norm"] > 0
        assert entry["critic/vf_loss"] >= 0


def test_the_same_script_samples_the_same_episodes_in_one_process(
    grpo: Ran, tmp_path: Path
) -> None:
    local = run_script(tmp_path / "local", "local", "grpo", 1)
    first = Counter(json.dumps(events) for events in local.episodes)
    assert first == Counter(json.dumps(events) for events in grpo.episodes[:NUM_EPISODES])


def test_a_run_goes_on_from_its_checkpoint(ppo: Ran) -> None:
    before = len(ppo.episodes)
    again = run_script(ppo.output, "verl", "gae", 3)
    assert [entry["step"] for entry in again.history] == [1, 2, 3]
    assert again.history[:2] == ppo.history
    assert len(again.episodes) - before == NUM_EPISODES
    assert again.history[2]["training/rollout_probs_diff_max"] < 1e-4
    assert (ppo.output / "runs/run/verl/global_step_3").is_dir()
