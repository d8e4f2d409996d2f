"""The blocks about VERL: its names over our parts, datasets and rewards of one's own, its trainer.

Here is what needs no VERL; `tests/beside_verl/test_brought_parts.py` runs the rest with it.
"""

import inspect
import json
import re

import pytest
import torch
from torch.utils.data import Dataset

import turnwise
from docs.seed_blocks import block, covers, only, put_modules, run
from turnwise import ConfigStore, CustomRayPPOTrainer, RewardBatch
from turnwise.models import load_tokenizer
from turnwise.scale.verl import to_verl_config
from turnwise.scale.verl.settings import Resources


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


def check_signatures(text, of):
    """Every function that a block shows has those arguments, in that order."""
    for indent, name, arguments in re.findall(r"^( *)def (\w+)\((.*)\)$", text, re.M):
        asked = [argument.strip() for argument in arguments.split(",")]
        ours = inspect.signature(getattr(of(indent), name)).parameters
        plain = [argument for argument in asked if not argument.startswith("**")]
        assert list(ours)[: len(plain)] == plain, name
        if plain != asked:
            assert any(parameter.kind is parameter.VAR_KEYWORD for parameter in ours.values())


@covers("extraction", 0, 1, 2)
def test_function_signatures(source):
    text = block(source, "extraction", 0)
    check_signatures(text, lambda indent: turnwise.DataParallelPPOActor if indent else turnwise)
    check_signatures(block(source, "extraction", 1), lambda indent: turnwise.VLLMRolloutSPMD)
    text = block(source, "extraction", 2)
    assert "class RLHFDataset(Dataset)" in text
    assert issubclass(turnwise.RLHFDataset, Dataset)
    check_signatures(text, lambda indent: turnwise)


# ---- a project of one's own ----


class Rooms:
    """A user's environment, as the guide's classes call it."""

    words = ("hall", "attic", "cellar")

    def get_state(self, idx):
        return self.words[idx % 3]

    def get_action(self, idx):
        return f"go to the {self.get_state(idx)}"

    def compute_reward(self, state, action):
        return float(len(state))


@pytest.fixture
def project(source, monkeypatch, tokenizer):
    """The guide's modules: what it copies is ours, what it leaves open is filled in."""
    put_modules(
        monkeypatch,
        your_project__data__rl_dataset={"RLHFDataset": turnwise.RLHFDataset},
        your_project__training__reward={"compute_reward": turnwise.compute_reward},
        your_project__training__ray_trainer={"RayPPOTrainer": turnwise.RayPPOTrainer},
        verl__protocol={"DataProto": RewardBatch},
    )
    known = (turnwise.RLHFDataset, turnwise.CustomEnvDataset)
    dataset = only(turnwise.RLHFDataset, run(block(source, "extraction", 3)), known)
    names = run(block(source, "extraction", 4))
    (manager,) = [x for x in names.values() if isinstance(x, type) and "extract_action" in vars(x)]

    class RoomsDataset(dataset):
        def state_to_text(self, state):
            return f"You are in the {state}."

    class RoomsReward(manager):
        def extract_action(self, response):
            return tokenizer.decode(response, skip_special_tokens=True)

    contents = {"CustomEnvDataset": RoomsDataset, "CustomRewardManager": RoomsReward}
    for folder in ("custom", "your_project__custom"):
        put_modules(monkeypatch, **{f"{folder}__env_dataset": contents})
        put_modules(monkeypatch, **{f"{folder}__reward_manager": contents})
    put_modules(monkeypatch, your_environment={"YourEnvironment": Rooms})
    return contents


@covers("extraction", 3)
def test_a_dataset_of_ones_own(project, tokenizer):
    dataset = project["CustomEnvDataset"](Rooms(), tokenizer=tokenizer)
    item = dataset[1]
    assert (item["prompt"], item["state"]) == ("You are in the attic.", "attic")
    assert item["expected_action"] == "go to the attic"
    assert tokenizer.decode(item["input_ids"]) == item["prompt"]
    batch = turnwise.collate_fn([dataset[n] for n in range(3)])
    assert batch["input_ids"].shape == batch["attention_mask"].shape
    assert isinstance(dataset, Dataset)


@covers("extraction", 4, 5)
def test_a_reward_of_batches_and_the_script(source, project, short_runs, tokenizer):
    config = ConfigStore()
    config.training.num_epochs, config.training.steps_per_epoch = 1, 2
    text = block(source, "extraction", 5)
    # One pass over a thousand rows would take long.
    text = text.replace("trainer.fit()", "trainer.fit(num_epochs=1, num_iters_per_epoch=2)")
    run(text, __name__="__main__", YourEnvironment=Rooms, config=config, tokenizer=tokenizer)
    (metrics,) = (short_runs / "runs").glob("*/metrics.jsonl")
    rewards = [json.loads(line)["reward"] for line in metrics.read_text().splitlines()]
    assert len(rewards) == 2
    assert all(4.0 <= reward <= 6.0 for reward in rewards)  # the lengths of the rooms' names


@covers("extraction", 6, 7)
def test_the_project_piece_by_piece(source, project, capsys):
    for number, env in ((6, None), (7, Rooms())):
        (text,) = re.findall(r'python -c "\n(.*)"', block(source, "extraction", number), re.S)
        run(text, env=env)
    printed = capsys.readouterr().out
    assert "1000" in printed
    assert "You are in the hall." in printed


@covers("extraction", 8)
def test_the_command_line(source, tmp_path, monkeypatch):
    command = block(source, "extraction", 8)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "test_config.yaml").write_text("training: {batch_size: 3}\n")
    monkeypatch.chdir(tmp_path)
    assert ConfigStore.from_args(command.split()[2:]).training.batch_size == 3


# ---- VERL's trainer ----


@covers("verl_notes", 0)
def test_the_parts_of_verls_trainer_are_taken(source, tokenizer):
    def as_ours(config, tokenizer, role_worker_mapping, resource_pool_manager, **parts):
        return CustomRayPPOTrainer(
            config,
            tokenizer=tokenizer,
            role_worker_mapping=role_worker_mapping,
            resource_pool_manager=resource_pool_manager,
            **parts,
        )

    names = {"config": ConfigStore(), "tokenizer": tokenizer, "VERLRayPPOTrainer": as_ours}
    text = block(source, "verl_notes", 0)
    trainer = run(text, role_worker_mapping={}, resource_pool_manager=None, **names)["trainer"]
    assert isinstance(trainer, CustomRayPPOTrainer)
    shown = set(re.findall(r"(\w+)=None", text))
    assert shown <= set(inspect.signature(CustomRayPPOTrainer).parameters)


@covers("verl_notes", 1, 9)
def test_the_same_script_on_either_engine(source, short_runs, tokenizer):
    text = block(source, "verl_notes", 9).replace("num_epochs = 10", "num_epochs = 1")
    trainer = run(text, tokenizer=tokenizer)["trainer"]
    assert len(trainer.metrics_history) == 1
    run(block(source, "verl_notes", 1), trainer=trainer)
    assert len(trainer.metrics_history) == 2
    trainer.cleanup()
    text = text.replace("tokenizer=tokenizer", 'tokenizer=tokenizer, engine="verl"')
    on_verl = text.replace("trainer.fit()", "")
    assert isinstance(run(on_verl, tokenizer=tokenizer)["trainer"], CustomRayPPOTrainer)


@covers("verl_notes", 2)
def test_openings_as_tokens(source, tokenizer):
    env = turnwise.CustomGameEnvironment({})
    text = block(source, "verl_notes", 2).replace("tokenizer(prompt, ...)", "tokenizer(prompt)")
    function = "def row():\n    global prompt\n" + re.sub(r"^", "    ", text, flags=re.M)
    names = run(function, env=env, tokenizer=tokenizer)
    assert set(names["row"]()) == {"input_ids", "attention_mask"}
    assert env.reset() in names["prompt"]
    row = turnwise.CustomEnvironmentDataset(env, tokenizer, size=2, max_length=400)[0]
    shown = tokenizer.decode(row["input_ids"][row["attention_mask"].bool()])
    assert env.reset() in shown
    assert row["input_ids"].shape == (400,)


@covers("verl_notes", 3)
def test_a_reward_wrapper(source):
    env = turnwise.CustomGameEnvironment({})
    text = block(source, "verl_notes", 3).replace("[reward, ...]", "[reward]")
    names = run(text, DataProto=RewardBatch, torch=torch, env=env, i=0)
    data = RewardBatch(turnwise.reward.batches.Columns({"responses": ["complete quest", "mumble"]}))
    assert names["reward_fn"](data).tolist() == [10.0]
    wrapper = turnwise.EnvironmentRewardWrapper(env, lambda trajectory: sum(trajectory.rewards))
    assert wrapper(data).tolist() == pytest.approx([10.0, -0.1])


@covers("verl_notes", 4)
def test_a_trainer_of_ones_own(source, tokenizer):
    text = block(source, "verl_notes", 4)
    text = text.replace("environment, ...)", "environment, tokenizer, reward_fn)")
    text = re.sub(r"^ *\.\.\.\n", "", text, flags=re.M)
    names = {"VERLRayPPOTrainer": CustomRayPPOTrainer, "verl_config": ConfigStore()}
    for name in ("CustomEnvironmentDataset", "EnvironmentRewardWrapper"):
        names[name] = getattr(turnwise, name)
    own = run(text, **names)["CustomRayPPOTrainer"]
    game = turnwise.SimpleGameEnvironment()
    trainer = own(ConfigStore(), game, tokenizer, lambda trajectory: 1.0)
    assert isinstance(trainer, CustomRayPPOTrainer)
    assert trainer._user.environment is game  # the dataset's
    assert own.fit is not CustomRayPPOTrainer.fit


@covers("verl_notes", 5)
def test_a_conversations_engine(source, engine):
    multi_turn = turnwise.MultiTurnInferenceEngine(engine, max_turns=3, system_prompt="Be brief.")
    text = re.sub(r"^ *\.\.\.,", "config, environment,", block(source, "verl_notes", 5), flags=re.M)
    names = {"config": ConfigStore(), "environment": turnwise.SimpleGameEnvironment}
    names |= {"CustomRayPPOTrainer": CustomRayPPOTrainer, "multi_turn": multi_turn}
    trainer = run(text, **names)["trainer"]
    from turnwise.scale.verl.components import episode_components

    found = episode_components(trainer._user, trainer.config, trainer._multi_turn)
    options = found.options
    assert (options.limits.max_turns, options.system_prompt) == (3, "Be brief.")


@covers("verl_notes", 6, 7, 8)
def test_settings_roles_and_pools(source, tmp_path):
    names = {"ConfigStore": ConfigStore, "CustomRayPPOTrainer": CustomRayPPOTrainer}
    names["environment"] = turnwise.SimpleGameEnvironment
    made = {number: run(block(source, "verl_notes", number), **names) for number in (6, 7, 8)}
    config = ConfigStore()
    machine = Resources("tiny", 2048, 0, tmp_path)
    found = to_verl_config(config, machine)
    sections = {name.split(".")[0] for name in found}
    assert {"trainer", "algorithm", "data", "actor_rollout_ref", "critic"} <= sections
    assert found["algorithm.gamma"] == config.training.gamma
    assert found["data.train_batch_size"] == config.training.batch_size
    roles, pools = made[7]["_default_role_mapping"](), made[8]["_default_resource_pool"]()
    trainer = CustomRayPPOTrainer(
        config, names["environment"], role_worker_mapping=roles, resource_pool_manager=pools
    )
    assert trainer._arguments.scores_batches == (source == "ours")  # ours has a RewardModel
    assert callable(made[6]["_create_verl_config"])
