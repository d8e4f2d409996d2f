"""VERL's own trainers, for real, on this CPU: a user's script run in processes of its own.

VERL takes most of a minute to start, much of it waiting: the runs go two at a time.
"""

import json
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from beside_verl.script_runs import NUM_EPISODES, RECORD, Ran, run_command, run_script
from turnwise.models import load_tokenizer
from turnwise.runs.episode_store import EpisodeStore

Started = dict[str, Future[list[Ran]]]


@pytest.fixture(scope="module")
def started(request, tmp_path_factory):
    """The runs that the chosen tests ask for, each with those that go on from it."""

    def grpo(folder: Path) -> list[Ran]:
        return [run_script(folder, "verl", "grpo", 2, RECORD)]

    def ppo(folder: Path) -> list[Ran]:
        first = run_script(folder, "verl", "gae", 2, RECORD)
        return [first, run_command(folder, "gae", 3, RECORD)]

    def newer(folder: Path) -> list[Ran]:
        return [run_script(folder, "verl", "grpo", 2, "trainer.use_v1=true")]

    def others(folder: Path) -> list[Ran]:
        return [run_script(folder / engine, engine, "grpo", 1) for engine in ("local", "ray")]

    chains = {"ppo": ppo, "grpo": grpo, "newer": newer, "others": others}
    asked = {
        name
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
        for name in (*item.fixturenames, *_parameters(item))
    }
    pool = ThreadPoolExecutor(max_workers=2)
    try:
        yield {
            name: pool.submit(chain, tmp_path_factory.mktemp(name))
            for name, chain in chains.items()
            if name in asked
        }
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _parameters(item: pytest.Function) -> list[object]:
    return list(item.callspec.params.values()) if hasattr(item, "callspec") else []


@pytest.fixture(scope="module")
def ppo(started):
    """PPO with a critic: two steps, and a third one by `turnwise train`, started anew."""
    return started["ppo"].result()[1]


@pytest.fixture(scope="module")
def grpo(started):
    return started["grpo"].result()[0]


@pytest.fixture(scope="module")
def newer(started):
    return started["newer"].result()[0]


@pytest.fixture(scope="module")
def others(started):
    """The same script in one process, and on Ray."""
    return started["others"].result()


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


@pytest.mark.parametrize(("name", "num_steps"), [("grpo", 2), ("ppo", 3)])
def test_every_token_that_verl_trains_on_was_sampled(name, num_steps, request):
    run: Ran = request.getfixturevalue(name)
    assert len(run.batches) == num_steps
    for step, batch in enumerate(run.batches):
        written = run.episodes[step * NUM_EPISODES : (step + 1) * NUM_EPISODES]
        trained = [turns_of(batch, row) for row in range(NUM_EPISODES)]
        # What was sampled, turn by turn, is what the environment and its tool were given, and
        # each reward is the reward function's for that turn.
        assert Counter(
            tuple((said, round(reward, 4)) for said, _, reward in turns) for turns in trained
        ) == Counter(
            tuple((event[1], round(2 * event[2], 4)) for event in events) for events in written
        )
        # What stands between is what they answered, and is not trained on.
        answers = {
            tuple(said for said, _, _ in turns): [after for _, after, _ in turns[:-1]]
            for turns in trained
        }
        for events in written:
            between = answers[tuple(event[1] for event in events)]
            for event, text in zip(events, between, strict=False):
                assert event[3] in text


def test_tools_were_called(grpo):
    kinds = Counter(event[0] for events in grpo.episodes for event in events)
    assert kinds["tool"] > 0
    assert kinds["step"] > 0


@pytest.mark.parametrize("name", ["grpo", "ppo", "newer"])
def test_verls_scores_are_the_rewards_that_the_environments_gave(name, request):
    run: Ran = request.getfixturevalue(name)
    assert len(run.episodes) == len(run.history) * NUM_EPISODES
    for number, entry in enumerate(run.history):
        written = run.episodes[number * NUM_EPISODES : (number + 1) * NUM_EPISODES]
        mean = sum(2 * event[2] for events in written for event in events) / NUM_EPISODES
        assert entry["reward"] == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("name", ["grpo", "ppo", "newer"])
def test_the_learners_log_probs_are_those_of_the_sampling(name, request):
    run: Ran = request.getfixturevalue(name)
    for entry in run.history:
        assert entry["training/rollout_probs_diff_max"] < 1e-4


@pytest.mark.parametrize("name", ["grpo", "newer"])
def test_the_weights_move_and_reach_the_server(name, request):
    first, second = request.getfixturevalue(name).history
    assert (first["step"], second["step"]) == (1, 2)
    assert first["actor/grad_norm"] > 0
    # The second step was sampled from the updated weights, or its log-probs would not agree.
    assert second["training/rollout_probs_diff_max"] < 1e-4
    assert first["actor/kl_loss"] == pytest.approx(0, abs=1e-6)
    assert second["actor/kl_loss"] > 0


def test_both_of_verls_trainers_play_the_same_episodes(grpo, newer):
    first, other = (Counter(map(json.dumps, run.episodes[:NUM_EPISODES])) for run in (grpo, newer))
    assert first == other


def test_ppo_has_a_critic_that_learns(ppo):
    for entry in ppo.history:
        assert entry["critic/grad_norm"] > 0
        assert entry["critic/vf_loss"] >= 0


def test_a_run_goes_on_from_its_checkpoint(started, ppo):
    before, after = started["ppo"].result()[0], ppo
    assert [entry["step"] for entry in after.history] == [1, 2, 3]
    assert after.history[:2] == before.history
    # The third step was sampled from the weights of the checkpoint, which both sides have.
    assert after.history[2]["training/rollout_probs_diff_max"] < 1e-4
    assert (after.run_folder / "verl/global_step_3").is_dir()


def test_the_same_script_plays_the_same_episodes_on_every_engine(grpo, others):
    first = Counter(map(json.dumps, grpo.episodes[:NUM_EPISODES]))
    for run in others:
        assert Counter(map(json.dumps, run.episodes)) == first
        assert run.history[0]["reward"] == pytest.approx(grpo.history[0]["reward"], abs=1e-4)


def test_verl_has_the_very_tokens_of_one_process_and_the_same_mask(grpo, others):
    batch = grpo.batches[0]
    verls = []
    for row in range(NUM_EPISODES):
        length = batch["responses"].shape[1]
        seen = batch["attention_mask"][row].bool()
        mask = torch.zeros_like(seen)
        mask[-length:] = batch["response_mask"][row].bool()
        ids = torch.cat([batch["prompts"][row], batch["responses"][row]])
        verls.append((tuple(ids[seen].tolist()), tuple(mask[seen].tolist())))
    ours = []
    for episode in EpisodeStore(others[0].run_folder / "episodes", 0).read(1):
        agent = episode.agents[0]
        end = agent.turns[-1].tokens[1]  # VERL has nothing after the last sampled token
        ours.append((tuple(agent.ids[:end].tolist()), tuple(map(bool, agent.mask[:end]))))
    assert Counter(verls) == Counter(ours)
