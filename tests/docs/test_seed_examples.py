"""The examples in the documents that asked for this library, executed as they are written.

The documents lie beside the checkout, not in it. Only `setup` is replaced by `turnwise`, and what
a fragment leaves undefined is filled in.
"""

import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import turnwise
from turnwise import ConfigStore, Trajectory, algo
from turnwise.config import InferenceConfig, TrainingConfig

SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"
pytestmark = pytest.mark.skipif(
    not SEEDS.is_dir(), reason="the documents are not beside the checkout"
)


def examples(number):
    """The Python fragments of one document."""
    (path,) = SEEDS.glob(f"{number:03d}_*.txt")
    fragments = re.findall(r"^ *```python\n(.*?)^ *```", path.read_text(), re.M | re.S)
    return [
        inspect.cleandoc("\n" + text.replace("from setup import", "from turnwise import"))
        for text in fragments
    ]


def find(number, words):
    """The one fragment of a document that contains these words."""
    (found,) = [text for text in examples(number) if words in text]
    return found


def run(text, **names) -> dict[str, Any]:
    exec(compile(text, "example", "exec"), names)
    return names


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


def test_readme_environment_and_reward():
    names = run(find(0, "class MyEnvironment(BaseEnvironment)"))
    environment = names["MyEnvironment"](ConfigStore().environment)
    trajectory = turnwise.play_episode(environment, lambda env, observation: "anything")
    assert trajectory.total_reward == environment.max_steps
    reward = run(find(0, "def compute_reward(trajectory, environment)"))["compute_reward"]
    assert turnwise.compute_reward(trajectory, environment, reward).total == 10.0


def test_readme_configuration():
    config = run(find(0, "# Checkpointing\nconfig.checkpoint"))["config"].validate()
    assert config.model.model_name == "meta-llama/Llama-2-7b-hf"
    assert config.training.batch_size == 32
    run(find(0, "All config sections are optional"), ConfigStore=ConfigStore)


def test_readme_optional_methods_and_trajectory():
    run(find(0, "class MyEnv(BaseEnvironment)"), BaseEnvironment=turnwise.BaseEnvironment)
    # The document abbreviates its lists with "...", which Python reads as one more value.
    trajectory = run(find(0, "trajectory = Trajectory()"), Trajectory=Trajectory)["trajectory"]
    assert trajectory["states"][0] == "state1"


def test_readme_advantages_losses_and_kl():
    values = batch()
    names = run(find(0, "compute_gae_advantage_return"), **values)
    assert names["advantages"].shape == (4, 6)
    names = run(find(0, "PPO policy loss with clipping"), **values)
    names["policy_loss"].backward()
    assert values["new_lp"].grad.abs().sum() > 0
    assert names["value_loss"] > 0
    names = run(find(0, "Apply KL penalty to rewards"), **values)
    assert names["penalized_rewards"].shape == (4, 6)
    assert names["kl_ctrl"].value > 0.01


def test_readme_text_game_plays():
    text = find(0, "class TextGameEnv(BaseEnvironment)").split("# Train")[0]
    game = run(text)["TextGameEnv"](ConfigStore().environment)
    for _ in range(2):  # it never resets `_done` itself
        actions = iter(["take lamp", "look", "attack"])
        trajectory = turnwise.play_episode(game, lambda env, observation, a=actions: next(a))
        assert trajectory.rewards == [1.0, -0.1, 5.0]
        assert trajectory.dones == [False, False, True]
    report = turnwise.check_env(type(game))
    assert report.ok, str(report)


def test_guide_function_signatures():
    text = find(1, "def compute_ppo_loss(")
    for name, arguments in re.findall(r"^def (\w+)\((.*)\)$", text, re.M):
        ours = list(inspect.signature(getattr(algo, name)).parameters)
        asked = [argument.strip() for argument in arguments.split(",")]
        assert ours[: len(asked)] == asked, name


def test_guide_command_line(tmp_path, monkeypatch):
    (command,) = [text for text in examples(1) if text.startswith("python main.py")]
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "test_config.yaml").write_text("training: {batch_size: 3}\n")
    monkeypatch.chdir(tmp_path)
    assert ConfigStore.from_args(command.split()[2:]).training.batch_size == 3


def test_manifest_settings():
    config = ConfigStore()
    for words in (
        "config.training.adv_estimator",
        "config.inference.backend",
        "config.ray.use_ray",
    ):
        run(find(3, words), config=config)
    config.validate()
    assert (config.training.adv_estimator, config.ray.num_actors) == ("grpo", 4)
    algo.get_advantage_estimator(config.training.adv_estimator)


def test_manifest_environment_and_tools():
    class MyTool(turnwise.Tool):
        """Say a parameter back."""

        name = "my_tool"

        def execute(self, param: str) -> str:
            return param

    text = find(3, "# Test environment").split("# Test inference")[0]
    names = run(
        text,
        MyEnv=turnwise.SimpleGameEnvironment,
        config=ConfigStore(),
        ToolRegistry=turnwise.ToolRegistry,
        MyTool=MyTool,
    )
    assert names["success"] is True
    assert names["result"] == "value"


def test_architecture_custom_game_behaves_as_documented():
    theirs = run(find(4, "class CustomGameEnvironment(BaseEnvironment)"))["CustomGameEnvironment"]
    ours = turnwise.CustomGameEnvironment
    assert theirs({}).max_steps == ours({}).max_steps == 10
    left, right = theirs({"max_steps": 5}), ours({"max_steps": 5})
    left.reset(), right.reset()
    for action in ("move north", "Move East", "pick up sword", "mumble", "complete quest"):
        _, reward, done, info = right.step(action)
        _, expected_reward, expected_done, expected_info = left.step(action)
        assert (reward, done) == (expected_reward, expected_done), action
        assert {k: v for k, v in info.items() if k in expected_info} == expected_info
        for name in ("position", "score", "inventory", "step_count"):
            assert getattr(right, name) == getattr(left, name), (action, name)
    assert right.is_done()


def test_architecture_reward_manager_gives_the_documented_numbers():
    text = find(4, "class RewardManager").replace("from verl.protocol import DataProto", "")
    names = {"BaseEnvironment": turnwise.BaseEnvironment, "DataProto": object}
    environment = turnwise.CustomGameEnvironment({"max_steps": 5})
    theirs = run(text, **names)["RewardManager"](environment)
    ours = turnwise.RewardManager(environment)
    trajectories = [
        turnwise.play_episode(environment, turnwise.random_player(seed), seed) for seed in range(20)
    ]
    for trajectory in trajectories:
        expected = theirs.compute_trajectory_reward(trajectory)
        assert ours.compute_trajectory_reward(trajectory) == pytest.approx(expected)
    torch.testing.assert_close(
        ours.compute_batch_rewards(trajectories), theirs.compute_batch_rewards(trajectories)
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Engines with a model of their own want it in a folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def run_on(backend, text, **names):
    """Run an example that asks for an engine that may not be installed.

    If it is not, the example says so, and the rest of it runs on the local engine.
    """
    asks = f'backend="{backend}"'
    assert asks in text
    if find_spec(backend) is None:
        with pytest.raises(turnwise.MissingExtraError, match=rf"turnwise\[{backend}\]"):
            run(text, **names)
        text = text.replace(asks, 'backend="local"')
    return run(text, **names)


def test_readme_inference_engines(cache):
    text = find(0, "output.sequences ->").replace("meta-llama/Llama-2-7b-hf", "tiny")
    names = run_on("vllm", text)
    output = names["output"]
    assert [type(answer) for answer in output.sequences] == [str]
    assert isinstance(output.tokens, np.ndarray)
    assert output.tokens.shape[0] == 1
    assert names["engine"].context_length == 2048
    names["engine"].close()
    text = find(0, 'backend="sglang",  # Switch').replace("meta-llama/Llama-2-7b-hf", "tiny")
    create = turnwise.create_inference_engine
    run_on("sglang", text, create_inference_engine=create)["engine"].close()


def test_readme_batch_inference():
    prompts = [f"What is {i} + {i}?" for i in range(70)]
    with turnwise.create_inference_engine("tiny", "scripted", policy=str.upper) as engine:
        names = run(find(0, "BatchInferenceManager"), engine=engine, large_prompt_list=prompts)
    assert names["output"].sequences == [prompt.upper() for prompt in prompts]


def test_manifest_inference(cache):
    text = find(3, "# Test inference").split("# Test inference")[1].split("# Test multi-turn")[0]
    text = text.replace('"model"', '"tiny"')
    names = run_on("vllm", text, create_inference_engine=turnwise.create_inference_engine)
    assert len(names["output"].sequences) == 1
    names["engine"].close()


@pytest.fixture
def both_engines():
    """The architecture document's engine and ours, on the same weights.

    Theirs is put together by hand: what loads its model needs a GPU and another package.
    """
    ours = turnwise.InferenceEngine("tiny", device="cpu")
    theirs = object.__new__(run(find(4, "class InferenceEngine"))["InferenceEngine"])
    theirs.model, theirs.tokenizer, theirs.device = ours.model, ours.tokenizer, "cpu"
    yield theirs, ours
    ours.close()


def test_architecture_engine_is_called_as_documented(both_engines):
    theirs, ours = both_engines
    for method in ("generate", "compute_log_probs"):
        asked = inspect.signature(getattr(theirs, method)).parameters.values()
        given = list(inspect.signature(getattr(ours, method)).parameters.values())
        for theirs_has, ours_has in zip(asked, given, strict=False):
            assert theirs_has.default == ours_has.default, theirs_has.name
    names = set(inspect.signature(ours.generate).parameters)
    assert {"max_new_tokens", "temperature", "top_p"} <= names


def test_architecture_engine_in_the_documented_episode_loop(both_engines):
    text = find(4, "class MultiTurnChatHarness")
    for line in ("from custom_environment import BaseEnvironment", "from inference import"):
        text = re.sub(f"^{line}.*$", "", text, flags=re.M)
    names = {"BaseEnvironment": turnwise.BaseEnvironment, "InferenceEngine": object}
    harness = run(text, **names)["MultiTurnChatHarness"]
    game = turnwise.CustomGameEnvironment({"max_steps": 2})
    episode = harness(both_engines[1], game, max_turns=3).run_episode("Play.")
    assert episode["num_turns"] == 2
    assert [type(action) for action in episode["actions"]] == [str, str]


def test_architecture_engine_says_what_the_documented_one_says(both_engines):
    theirs, ours = both_engines
    prompt = "The quick brown fox"
    expected = theirs.generate([prompt], max_new_tokens=24, temperature=1e-4)
    said = ours.generate([prompt], max_new_tokens=24, temperature=0)
    assert [answer.strip() for answer in said] == expected
    prompts, answers = ["Hello, ", "Two"], ["world!", " and two"]
    torch.testing.assert_close(
        ours.compute_log_probs(prompts, answers), theirs.compute_log_probs(prompts, answers)
    )


def test_readme_multi_turn_chat(cache):
    with turnwise.create_inference_engine("tiny") as engine:
        game = turnwise.SimpleGameEnvironment()
        names = run(find(0, "MultiTurnInferenceEngine"), engine=engine, my_env=game)
    assert isinstance(names["response"], str)
    assert len(names["responses"]) == names["responses"].num_turns == 5
    assert [type(response) for response in names["responses"]] == [str] * 5


def test_manifest_tool_calling():
    class MyTool(turnwise.Tool):
        """Say a parameter back."""

        name = "my_tool"

        def execute(self, param: str) -> str:
            return param

    parser = turnwise.JSONActionParser()
    said = parser.render(turnwise.ToolCall("my_tool", {"param": "value"}))
    environment = turnwise.SimpleGameEnvironment()
    names = {
        name: getattr(turnwise, name)
        for name in ("ToolRegistry", "MultiTurnManager", "MultiTurnInferenceEngine")
    }
    names |= {"MyTool": MyTool, "parser": parser, "env": environment, "prompt": "Play."}
    with turnwise.create_inference_engine("tiny", "scripted", policy=lambda text: said) as engine:
        summary = run(find(3, "enable_tools=True"), engine=engine, **names)["summary"]
    assert summary.tool_calls == {"my_tool": summary.num_turns}
    assert summary["num_turns"] == 10


def test_manifest_manager(capsys):
    text = find(3, "# Test multi-turn").split("# Test multi-turn")[1]
    names = {
        "MultiTurnManager": turnwise.MultiTurnManager,
        "registry": turnwise.ToolRegistry(),
        "parser": turnwise.JSONActionParser(),
        "env": turnwise.SimpleGameEnvironment(),
    }
    turn = run(text, **names)["turn"]
    assert turn.model_output == "model output"
    assert capsys.readouterr().out.strip() == turn.observation.strip()


def test_architecture_harness_gives_what_the_documented_one_gives():
    text = find(4, "class MultiTurnChatHarness")
    for line in ("from custom_environment import BaseEnvironment", "from inference import"):
        text = re.sub(f"^{line}.*$", "", text, flags=re.M)
    names = {"BaseEnvironment": turnwise.BaseEnvironment, "InferenceEngine": object}
    theirs = run(text, **names)["MultiTurnChatHarness"]
    said = "move north"
    with turnwise.create_inference_engine("tiny", "scripted", policy=lambda text: said) as engine:
        games = [turnwise.CustomGameEnvironment({"max_steps": 3}) for _ in range(2)]
        expected = theirs(engine, games[0], max_turns=2).run_episode("Play.")
        episode = turnwise.MultiTurnChatHarness(engine, games[1], max_turns=2).run_episode("Play.")
    for name in ("actions", "observations", "rewards", "dones", "infos", "total_reward"):
        assert episode[name] == expected[name], name
    assert episode["num_turns"] == expected["num_turns"]


@pytest.fixture
def short_runs(tmp_path, monkeypatch):
    """Runs of the tiny model in a folder of their own, with two short episodes a step."""
    monkeypatch.chdir(tmp_path)
    small = {
        TrainingConfig: {"batch_size": 2, "steps_per_epoch": 1},
        InferenceConfig: {"max_tokens": 4, "max_turns": 2},
    }
    for section, values in small.items():
        plain = section.__init__

        def shortened(self, *args, plain=plain, values=values, **given):
            plain(self, *args, **{**values, **given})

        monkeypatch.setattr(section, "__init__", shortened)
    return tmp_path


def test_readme_text_game_trains(short_runs):
    trainer = run(find(0, "class TextGameEnv(BaseEnvironment)"))["trainer"]
    assert [metrics["epoch"] for metrics in trainer.metrics_history] == [1, 2, 3, 4, 5]
    assert {metrics["turns"] for metrics in trainer.metrics_history} <= {1.0, 1.5, 2.0}
    assert trainer.run_folder == Path("runs/TextGameEnv")
    assert len(list((trainer.run_folder / "checkpoints").glob("step-*"))) == 3
    trainer.cleanup()


def test_readme_quick_start_trains(short_runs):
    names = run(find(0, "class MyEnvironment(BaseEnvironment)"))
    config = run(find(0, "# Checkpointing\nconfig.checkpoint"))["config"]
    assert config.training.num_epochs == 10
    # What its model and engine need is not everywhere; the rest is as it is written.
    config.model.model_name, config.model.dtype = "tiny", "float32"
    config.inference.backend, config.inference.max_tokens = "local", 4
    config.training.batch_size = 2
    names |= run(find(0, "def compute_reward(trajectory, environment)")) | {"config": config}
    trainer = run(find(0, "env = MyEnvironment(config.environment)"), **names)["trainer"]
    assert [metrics["reward"] for metrics in trainer.metrics_history] == [2.0] * 10
    saved = (short_runs / "checkpoints" / "MyEnvironment" / "checkpoints").glob("step-*")
    assert sorted(path.name for path in saved) == ["step-00000005", "step-00000010"]
    trainer.cleanup()


def test_readme_training_loop_checkpoints_and_metrics(short_runs, capsys):
    names = run(
        find(0, "dataset=optional_dataset"),
        config=ConfigStore(),
        env=turnwise.SimpleGameEnvironment(),
        reward_function=lambda trajectory: sum(trajectory.rewards),
        optional_dataset=None,
    )
    trainer = names["trainer"]
    loop = find(0, "# Or specific configuration").replace(
        "num_iters_per_epoch=100", "num_iters_per_epoch=1"
    )
    run(loop.replace("num_epochs=10", "num_epochs=2"), trainer=trainer)
    assert len(trainer.metrics_history) == 4
    run(find(0, "# Manually save"), trainer=trainer, Path=Path)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == [f"Epoch {n}" for n in (1, 2, 3, 4)]
    assert all(float(line.split(":")[1]) is not None for line in printed)
    assert (short_runs / "checkpoints" / "epoch_5" / "weights.safetensors").is_file()
    assert trainer.step == 4
    run(find(0, "trainer.cleanup()"), trainer=trainer)


def test_manifest_trainer(short_runs):
    text = find(3, "trainer = RayPPOTrainer(config, env, reward_fn=...)")
    text = text.replace("reward_fn=...", "reward_fn=reward_fn")
    config = ConfigStore()
    config.training.num_epochs = 1
    names = {"MyEnv": turnwise.SimpleGameEnvironment, "RayPPOTrainer": turnwise.RayPPOTrainer}
    trainer = run(text, config=config, reward_fn=lambda trajectory: 7.0, **names)["trainer"]
    assert [metrics["reward"] for metrics in trainer.metrics_history] == [7.0]
