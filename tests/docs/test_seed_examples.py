"""The blocks about environments, settings, algorithms, engines, training and tools."""

import importlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import turnwise
from docs.seed_blocks import COVERED, DOCUMENTS, SOURCES, block, blocks, covers, names_of, only, run
from turnwise import BaseEnvironment, ConfigStore, Trajectory, algo

FUNCTION = type(run)


def test_every_block_has_a_test_and_ours_are_as_many_as_theirs():
    for module in ("test_seed_architecture", "test_seed_verl"):
        importlib.import_module(f"docs.{module}")
    every = {(name, number) for name, size in DOCUMENTS.items() for number in range(size)}
    assert every == COVERED
    assert len(every) == 50
    for source in SOURCES:
        assert {name: len(blocks(source, name)) for name in DOCUMENTS} == DOCUMENTS


@covers("readme", 0, 2)
def test_environment_and_reward(source):
    game = only(BaseEnvironment, run(block(source, "readme", 0)))(ConfigStore().environment)
    trajectory = turnwise.play_episode(game, lambda env, observation: "anything")
    assert trajectory.total_reward == game.max_steps == 10
    reward = only(FUNCTION, run(block(source, "readme", 2)))
    assert turnwise.compute_reward(trajectory, game, reward).total == 10.0


@covers("readme", 1, 4)
def test_configuration(source):
    config = run(block(source, "readme", 1))["config"].validate()
    assert config.model.model_name == "meta-llama/Llama-2-7b-hf"
    assert (config.training.batch_size, config.checkpoint.save_interval) == (32, 5)
    other = run(block(source, "readme", 4), ConfigStore=ConfigStore)["config"]
    assert other.training.learning_rate != ConfigStore().training.learning_rate


@covers("readme", 5, 6)
def test_optional_methods_and_trajectory(source):
    names = run(block(source, "readme", 5), BaseEnvironment=BaseEnvironment)
    assert only(BaseEnvironment, names)({}).get_prompt_prefix().startswith("You are")
    # The document abbreviates its lists with "...", which Python reads as one more value.
    trajectory = run(block(source, "readme", 6), Trajectory=Trajectory)["trajectory"]
    assert trajectory["states"][0] == "state1"


def batch():
    torch.manual_seed(0)
    x = {name: torch.randn(4, 6) for name in ("rewards", "values", "old_values", "advantages")}
    x |= {name: -torch.rand(4, 6) for name in ("old_lp", "lp", "ref_lp")}
    return x | {
        "new_lp": (-torch.rand(4, 6)).requires_grad_(),
        "returns": torch.randn(4, 6),
        "mask": torch.rand(4, 6) > 0.3,
        "group_indices": [0, 0, 1, 1],
        "algo": algo,
    }


@covers("readme", 7, 8, 9)
def test_advantages_losses_and_kl(source):
    values = batch()
    names = run(block(source, "readme", 7), **values)
    assert names["advantages"].shape == names["returns"].shape == (4, 6)
    names = run(block(source, "readme", 8), **values)
    names["policy_loss"].backward()
    assert values["new_lp"].grad.abs().sum() > 0
    assert names["value_loss"] > 0
    names = run(block(source, "readme", 9), **values)
    assert names["penalized_rewards"].shape == (4, 6)
    assert names["kl_ctrl"].value > 0.01


def run_on(backend, text, **names):
    """Run a block that asks for an engine that may not be installed.

    If it is not, the block says so, and the rest of it runs on the local engine: in float32, which
    every processor has, and with a few tokens.
    """
    text = text.replace("meta-llama/Llama-2-7b-hf", "tiny").replace('"model"', '"tiny"')
    text = text.replace("max_tokens=256", "max_tokens=8").replace("bfloat16", "float32")
    asks = f'backend="{backend}"'
    assert asks in text
    if find_spec(backend) is None:
        with pytest.raises(turnwise.MissingExtraError, match=rf"turnwise\[{backend}\]"):
            run(text, **names)
        text = text.replace(asks, 'backend="local"')
    return run(text, **names)


@covers("readme", 10, 11)
def test_inference_engines(source):
    names = run_on("vllm", block(source, "readme", 10))
    output = names["output"]
    assert [type(answer) for answer in output.sequences] == [str]
    assert isinstance(output.tokens, np.ndarray)
    assert output.tokens.shape[0] == 1
    assert names["engine"].context_length == 2048
    names["engine"].close()
    create = turnwise.create_inference_engine
    text = block(source, "readme", 11)
    run_on("sglang", text, create_inference_engine=create)["engine"].close()


@covers("readme", 12)
def test_multi_turn_chat(source):
    with turnwise.create_inference_engine("tiny", "scripted", policy=lambda text: "go") as engine:
        game = turnwise.SimpleGameEnvironment()
        names = run(block(source, "readme", 12), engine=engine, my_env=game)
    assert isinstance(names["response"], str)
    assert len(names["responses"]) == names["responses"].num_turns == 5
    assert [type(response) for response in names["responses"]] == [str] * 5


@covers("readme", 13)
def test_batch_inference(source):
    prompts = [f"What is {i} + {i}?" for i in range(70)]
    with turnwise.create_inference_engine("tiny", "scripted", policy=str.upper) as engine:
        text = block(source, "readme", 13)
        names = run(text, engine=engine, large_prompt_list=prompts)
    assert names["output"].sequences == [prompt.upper() for prompt in prompts]


@covers("readme", 3)
def test_quick_start_trains(source, short_runs):
    names = run(block(source, "readme", 0))
    config = run(block(source, "readme", 1))["config"]
    assert config.training.num_epochs == 10
    # What its model and engine need is not everywhere; the rest is as it is written.
    config.model.model_name, config.model.dtype = "tiny", "float32"
    config.inference.backend, config.inference.max_tokens = "local", 4
    config.training.batch_size = 2
    names |= run(block(source, "readme", 2)) | {"config": config}
    trainer = run(block(source, "readme", 3), **names)["trainer"]
    assert [metrics["reward"] for metrics in trainer.metrics_history] == [2.0] * 10
    (saved,) = (short_runs / "checkpoints").glob("*/checkpoints")
    found = sorted(path.name for path in saved.glob("step-*"))
    assert found == ["step-00000005", "step-00000010"]
    trainer.cleanup()


@covers("readme", 14, 15, 16, 17)
def test_training_loop_checkpoints_and_metrics(source, short_runs, capsys):
    names = run(
        block(source, "readme", 14),
        config=ConfigStore(),
        env=turnwise.SimpleGameEnvironment(),
        reward_function=lambda trajectory: sum(trajectory.rewards),
        optional_dataset=None,
    )
    trainer = names["trainer"]
    loop = block(source, "readme", 15).replace("num_iters_per_epoch=100", "num_iters_per_epoch=1")
    run(loop.replace("num_epochs=10", "num_epochs=2"), trainer=trainer)
    assert len(trainer.metrics_history) == 4
    run(block(source, "readme", 16), trainer=trainer, Path=Path)
    lines = capsys.readouterr().out.splitlines()
    printed = [line for line in lines if line.startswith("Epoch")]  # fit reports its steps too
    assert [line.split(":")[0] for line in printed] == [f"Epoch {n}" for n in (1, 2, 3, 4)]
    assert all(float(line.split(":")[1]) is not None for line in printed)
    assert (short_runs / "checkpoints" / "epoch_5" / "weights.safetensors").is_file()
    assert trainer.step == 4
    run(block(source, "readme", 17), trainer=trainer)


@covers("readme", 18)
def test_the_text_game_plays_and_trains(source, short_runs):
    names = run(block(source, "readme", 18))
    kind, trainer = only(BaseEnvironment, names), names["trainer"]
    assert [metrics["epoch"] for metrics in trainer.metrics_history] == [1, 2, 3, 4, 5]
    assert {metrics["turns"] for metrics in trainer.metrics_history} <= {1.0, 1.5, 2.0}
    assert trainer.run_folder == Path("runs") / kind.__name__
    assert len(list((trainer.run_folder / "checkpoints").glob("step-*"))) == 3
    trainer.cleanup()
    game = kind(ConfigStore().environment)
    for _ in range(2):  # it never resets `_done` itself
        actions = iter(["take lamp", "look", "attack"])
        trajectory = turnwise.play_episode(game, lambda env, observation, a=actions: next(a))
        assert trajectory.rewards == [1.0, -0.1, 5.0]
        assert trajectory.dones == [False, False, True]
    report = turnwise.check_env(kind)
    assert report.ok, str(report)


# ---- the manifest ----


class MyTool(turnwise.Tool):
    """Say a parameter back."""

    name = "my_tool"

    def execute(self, param: str) -> str:
        return param


@covers("manifest", 0)
def test_a_trainer(source, short_runs):
    text = block(source, "manifest", 0).replace("reward_fn=...", "reward_fn=reward_fn")
    config = ConfigStore()
    config.training.num_epochs = 1
    names = {**names_of(text), "MyEnv": turnwise.SimpleGameEnvironment, "config": config}
    trainer = run(text, reward_fn=lambda trajectory: 7.0, **names)["trainer"]
    assert [metrics["reward"] for metrics in trainer.metrics_history] == [7.0]
    trainer.cleanup()


@covers("manifest", 1)
def test_tool_calling(source):
    parser = turnwise.JSONActionParser()
    said = parser.render(turnwise.ToolCall("my_tool", {"param": "value"}))
    text = block(source, "manifest", 1)
    names = {**names_of(text), "MyTool": MyTool, "parser": parser, "prompt": "Play."}
    with turnwise.create_inference_engine("tiny", "scripted", policy=lambda text: said) as engine:
        environment = turnwise.SimpleGameEnvironment()
        summary = run(text, engine=engine, env=environment, **names)["summary"]
    assert summary.tool_calls == {"my_tool": summary.num_turns}
    assert summary["num_turns"] == 10


@covers("manifest", 2, 3, 4)
def test_settings(source):
    config = ConfigStore()
    for number in (2, 3, 4):
        run(block(source, "manifest", number), config=config)
    config.validate()
    assert (config.training.adv_estimator, config.inference.backend) == ("grpo", "vllm")
    assert (config.ray.use_ray, config.ray.num_actors) == (True, 4)
    algo.get_advantage_estimator(config.training.adv_estimator)


@covers("manifest", 5)
def test_every_part_by_itself(source, capsys):
    text = block(source, "manifest", 5)
    names = {**names_of(text), "MyEnv": turnwise.SimpleGameEnvironment, "MyTool": MyTool}
    names |= {"config": ConfigStore(), "parser": turnwise.JSONActionParser()}
    names["create_inference_engine"] = turnwise.create_inference_engine
    names = run_on("vllm", text, **names)
    assert (names["success"], names["result"]) == (True, "value")
    assert len(names["output"].sequences) == 1
    assert names["turn"].model_output == "model output"
    assert capsys.readouterr().out.strip() == names["turn"].observation.strip()
    names["engine"].close()
