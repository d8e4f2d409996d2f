"""The blocks of a training loop by hand: environment, engine, harness, rewards, update, loop."""

import re
from types import SimpleNamespace

import pytest
import torch

import turnwise
from docs.seed_blocks import SOURCES, block, covers, put_modules, run
from turnwise.models import load_model

has_theirs = pytest.mark.skipif("theirs" not in SOURCES, reason="the documents are not here")
PART_MODULES = ("custom_environment", "inference", "multi_turn_harness", "reward_manager")


def theirs(number):
    """A class of the document's own, whose other modules are left to us."""
    text = block("theirs", "architecture", number)
    for line in ("from custom_environment", "from inference", "from verl.protocol"):
        text = re.sub(f"^{line}.*$", "", text, flags=re.M)
    names = {"BaseEnvironment": turnwise.BaseEnvironment}
    return run(text, InferenceEngine=object, DataProto=object, **names)


@covers("architecture", 0)
def test_the_game_behaves_as_documented(source):
    game = run(block(source, "architecture", 0))["CustomGameEnvironment"]
    ours = turnwise.CustomGameEnvironment
    assert game({}).max_steps == ours({}).max_steps == 10
    left, right = game({"max_steps": 5}), ours({"max_steps": 5})
    left.reset(), right.reset()
    for action in ("move north", "Move East", "pick up sword", "mumble", "complete quest"):
        _, reward, done, info = right.step(action)
        _, expected_reward, expected_done, expected_info = left.step(action)
        assert (reward, done) == (expected_reward, expected_done), action
        assert {k: v for k, v in info.items() if k in expected_info} == expected_info
        for name in ("position", "score", "inventory", "step_count"):
            assert getattr(right, name) == getattr(left, name), (action, name)
    assert right.is_done()


@covers("architecture", 1)
def test_the_engine_generates_and_scores():
    names = run(block("ours", "architecture", 1))
    assert len(names["answers"]) == 1
    assert isinstance(names["answers"][0], str)
    assert names["log_probs"].shape == (1,)
    assert names["log_probs"] < 0


@has_theirs
def test_the_engine_says_what_the_documented_one_says():
    ours = turnwise.InferenceEngine("tiny", device="cpu")
    # Theirs is put together by hand: what loads its model needs a GPU and another package.
    documented = object.__new__(theirs(1)["InferenceEngine"])
    documented.model, documented.tokenizer, documented.device = ours.model, ours.tokenizer, "cpu"
    expected = documented.generate(["The quick brown fox"], max_new_tokens=24, temperature=1e-4)
    said = ours.generate(["The quick brown fox"], max_new_tokens=24, temperature=0)
    assert [answer.strip() for answer in said] == expected
    prompts, answers = ["Hello, ", "Two"], ["world!", " and two"]
    torch.testing.assert_close(
        ours.compute_log_probs(prompts, answers), documented.compute_log_probs(prompts, answers)
    )
    # Our engine in the documented loop.
    harness = theirs(2)["MultiTurnChatHarness"]
    game = turnwise.CustomGameEnvironment({"max_steps": 2})
    episode = harness(ours, game, max_turns=1).run_episode("Play.")
    assert [type(action) for action in episode["actions"]] == [str]
    ours.close()


@pytest.fixture
def scripted():
    def second_completes(text):
        return "complete quest" if "move north<" in text else "move north"

    with turnwise.ScriptedEngine(load_model("tiny").tokenizer, second_completes) as policy:
        yield policy


@covers("architecture", 2, 3)
def test_the_harness_and_the_rewards(scripted):
    environment = turnwise.CustomGameEnvironment({"max_steps": 5})
    names = {"engine": scripted, "environment": environment}
    names = run(block("ours", "architecture", 2), **names)
    assert names["episode"]["prompts"] == ["Explore."]
    assert [episode["num_turns"] for episode in names["batch"]] == [2, 2]
    data = SimpleNamespace(batch={"responses": ["move north", "complete quest"]})
    found = run(block("ours", "architecture", 3), data=data, **names)
    # 0.1 and 10 for the steps, 5 for success, 0.1 for each of the 3 steps left.
    assert found["single"] == pytest.approx(0.1 + 10 + 5 + 0.3)
    assert found["several"].shape == (2,)
    assert found["of_responses"].tolist() == pytest.approx([0.5, 15.4])


@has_theirs
def test_the_harness_gives_what_the_documented_one_gives():
    policy = turnwise.ScriptedEngine(load_model("tiny").tokenizer, lambda text: "move north")
    games = [turnwise.CustomGameEnvironment({"max_steps": 3}) for _ in range(2)]
    documented = theirs(2)["MultiTurnChatHarness"]
    expected = documented(inference_engine=policy, environment=games[0], max_turns=2)
    harness = turnwise.MultiTurnChatHarness(
        inference_engine=policy, environment=games[1], max_turns=2
    )
    expected, episode = expected.run_episode("Play."), harness.run_episode("Play.")
    for name in expected:
        if name != "states":  # the document keeps the first one alone
            assert episode[name] == expected[name], name
    assert episode["states"][:1] == expected["states"]


@has_theirs
def test_the_reward_manager_gives_the_documented_numbers():
    environment = turnwise.CustomGameEnvironment({"max_steps": 5})
    documented = theirs(3)["RewardManager"](environment)
    ours = turnwise.RewardManager(environment)
    trajectories = [
        turnwise.play_episode(environment, turnwise.random_player(seed), seed) for seed in range(20)
    ]
    torch.testing.assert_close(
        ours.compute_batch_rewards(trajectories), documented.compute_batch_rewards(trajectories)
    )
    # Called with a batch, the document's gives ones; ours scores the responses.
    data = SimpleNamespace(batch={"responses": ["move north"]})
    assert documented(data).shape == ours(data).shape == (1,)


def tensors():
    torch.manual_seed(0)
    rewards, values, old, new = torch.randn(4, 3, 8).unbind()
    return {
        "rewards": rewards,
        "values": values,
        "dones": (torch.rand(3, 8) < 0.2).float(),
        "old_lp": old / 4,
        "new_lp": new / 4,
        "mask": torch.ones(3, 8),
    }


def sampled(model):
    ids = torch.randint(5, 50, (3, 12))
    with torch.no_grad():
        every = model(ids).logits.log_softmax(-1)
    return {
        "input_ids": ids,
        "response_mask": torch.ones(3, 8),
        "old_log_probs": every[:, 3:-1].gather(2, ids[:, 4:, None]).squeeze(2),
        "rewards": torch.rand(3),
    }


@covers("architecture", 4)
def test_the_update():
    model = load_model("tiny").model
    names = {"policy_model": model, "value_model": model, "batch": sampled(model)}
    found = run(block("ours", "architecture", 4), **names, **tensors())
    metrics = {**found["policy_metrics"], **found["value_metrics"]}
    assert {
        "policy_loss",
        "ratio_mean",
        "ratio_std",
        "value_loss",
        "value_mean",
        "return_mean",
    } <= set(metrics)
    assert {type(value) for value in metrics.values()} == {float}
    for name in ("epoch_0_policy_loss", "epoch_1_value_loss", "epoch_1_total_loss", "ratio_std"):
        assert name in found["metrics"]


@has_theirs
def test_the_update_computes_what_the_documented_one_computes():
    documented = theirs(4)["PPOTrainer"](torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    ours = turnwise.PPOTrainer(load_model("tiny").model)
    x = tensors()
    found = ours.compute_gae_advantages(x["rewards"], x["values"], x["dones"])
    expected = documented.compute_gae_advantages(x["rewards"], x["values"], x["dones"])
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    arguments = (x["old_lp"], x["new_lp"], expected[0], x["mask"])
    loss, metrics = ours.compute_ppo_loss(*arguments)
    expected_loss, expected_metrics = documented.compute_ppo_loss(*arguments)
    torch.testing.assert_close(loss, expected_loss)
    for name, value in expected_metrics.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5), name
    arguments = (x["values"], expected[1], x["mask"])
    loss, metrics = ours.compute_value_loss(*arguments)
    expected_loss, expected_metrics = documented.compute_value_loss(*arguments)
    torch.testing.assert_close(2 * loss, expected_loss)  # ours is half the squared error, as VERL's
    assert expected_metrics.keys() <= metrics.keys()


SMALLER = {
    "meta-llama/Llama-2-7b-hf": "tiny",
    "'cuda'": "'cpu'",
    "'batch_size': 32": "'batch_size': 2",
    "'num_epochs': 10": "'num_epochs': 1",
    "'max_turns': 5": "'max_turns': 1",
    # Random numbers are no token ids; these are.
    "torch.randn(config['batch_size'], 512).long()": "torch.arange(5, 17).repeat(2, 1)",
    "torch.randn(config['batch_size'], 256).long()": "torch.arange(5, 17).repeat(2, 1)[:, -8:]",
    " 512)": " 12)",
    " 256)": " 8)",
}


@covers("architecture", 5)
def test_the_loop(source, monkeypatch, capsys):
    text = block(source, "architecture", 5)
    for written, smaller in SMALLER.items():
        text = text.replace(written, smaller)
    ours = {name: getattr(turnwise, name) for name in dir(turnwise) if name[0].isupper()}
    put_modules(monkeypatch, **dict.fromkeys((*PART_MODULES, "ppo_training"), ours))
    run(text, __name__="__main__")
    printed = capsys.readouterr().out
    assert "ratio_mean" in printed
    assert float(printed.split("Average reward: ")[1].split()[0]) > -10
