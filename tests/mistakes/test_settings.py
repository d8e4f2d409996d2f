"""Mistakes in settings are refused before there is a run folder."""

import sys

import pytest

from mistakes.test_table import Good
from turnwise import ConfigStore, Trainer
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.trainer.checks import check_settings


def load(tmp_path, text, *overrides):
    (tmp_path / "my.yaml").write_text(text)
    return ConfigStore.load(tmp_path / "my.yaml", overrides)


# ---- YAML ----


@pytest.mark.parametrize(
    "text",
    [
        "training:\n  batch_size: 4\nmodel: tiny\ntraining:\n  seed: 1\n",
        "training: {seed: 1, batch_size: 2, seed: 3}\n",
    ],
)
def test_a_key_that_is_given_twice(tmp_path, text):
    with pytest.raises(ConfigError, match=r"my\.yaml is not valid YAML in line .* given twice"):
        load(tmp_path, text)


def test_merged_keys_may_be_overridden(tmp_path):
    text = "environments:\n- &maze {environment: a.py:A, weight: 1}\n- {<<: *maze, weight: 2}\n"
    assert [item.weight for item in load(tmp_path, text).environments] == [1, 2]


def test_sections_as_text(tmp_path):
    config = load(tmp_path, "environment: maze.py:Maze\nmodel: smollm2-135m\ndataset: a.jsonl\n")
    assert config.environment.name == "maze.py:Maze"
    assert config.model.model_name == "smollm2-135m"
    assert config.dataset.path == "a.jsonl"
    text = "environment: maze.py:Maze\nmodel: {dtype: float32}\n"
    config = load(tmp_path, text, "environment.params.size=5", "model=tiny")
    assert (config.environment.name, config.environment.params) == ("maze.py:Maze", {"size": 5})
    assert (config.model.model_name, config.model.dtype) == ("tiny", "float32")
    assert ConfigStore.of({"environment": "grid-world"}).environment.name == "grid-world"


@pytest.mark.parametrize("name", ["training.batch_size", "training.gamma", "ray.num_actors"])
def test_a_boolean_is_no_number(tmp_path, name):
    section, key = name.split(".")
    with pytest.raises(ConfigError, match=rf"my.yaml, line 2: {name} got True, expected a "):
        load(tmp_path, f"{section}:\n  {key}: true\n")
    with pytest.raises(ConfigError, match=rf"override {name}=yes: {name} got True"):
        load(tmp_path, "", f"{name}=yes")
    assert load(tmp_path, "", "training.gradient_checkpointing=true", "ray.use_ray=yes")


# ---- the words of other libraries ----


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("training: {lr: 1}", "'training.lr'. Here it is training.learning_rate."),
        ("lr: 1", "'lr'. Here it is training.learning_rate."),
        ("training: {beta: 0.1}", "Here it is training.kl_loss_coef"),
        ("training: {num_generations: 8}", "Here it is training.group_size."),
        ("training: {per_device_train_batch_size: 8}", "training.batch_size"),
        ("training: {max_completion_length: 8}", "Here it is inference.max_tokens"),
        ("training: {rollout_n: 8}", "Here it is training.group_size."),
        ("actor_rollout_ref: {rollout: {n: 8}}", "--engine verl"),
        ("algorithm: {kl_loss_coef: 1}", "--engine verl"),
        ("inference: {kl_loss_coef: 1}", "Did you mean 'training.kl_loss_coef'?"),
    ],
)
def test_a_setting_of_another_library(tmp_path, text, answer):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert answer in str(caught.value)


def test_a_setting_of_another_library_in_python_and_as_override():
    with pytest.raises(ConfigError, match=r"Here it is training.learning_rate\."):
        ConfigStore().training.lr = 1e-5
    with pytest.raises(ConfigError, match=r"Here it is training.group_size\."):
        ConfigStore.load(overrides=["num_generations=8"])


@pytest.mark.parametrize(
    ("setting", "name", "answer"),
    [
        ("adv_estimator", "ppo", "PPO is adv_estimator: gae with policy_loss: ppo."),
        ("adv_estimator", "PPO", "PPO is adv_estimator: gae with policy_loss: ppo."),
        ("adv_estimator", "dapo", "DAPO is adv_estimator: grpo with clip_ratio_high: 0.28"),
        ("adv_estimator", "gspo", "policy_loss: gspo with adv_estimator: grpo."),
        ("policy_loss", "grpo", "adv_estimator: grpo with policy_loss: ppo."),
        ("policy_loss", "vanilla", "PPO's loss is policy_loss: ppo."),
        ("policy_loss", "pg", "The plain policy gradient is policy_loss: reinforce."),
    ],
)
def test_an_algorithm_of_another_library(setting, name, answer):
    with pytest.raises(ConfigError) as caught:
        Trainer({"training": {setting: name}}, Good).fit()
    assert answer in str(caught.value)


# ---- refused before there is a folder ----

ROWS = [{"prompt": "What is 2 + 2?", "solution": "4"}]


def make_good():
    return Good()


class LateExpert(Good):
    """Has an expert that knows nothing, which only an episode shows."""

    def expert_action(self):
        return None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"config": {"checkpoint": {"best_metric": "eval/greedy/rewrd"}}},
            "'eval/greedy/rewrd', which is no metric. Did you mean 'eval/greedy/reward'?",
        ),
        (
            {"config": {"checkpoint": {"best_metric": "eval/sampled/success"}}},
            "training.eval_episodes is 0: there are no evaluations",
        ),
        (
            {"config": {"training": {"kl_target": 0.1}}},
            "training.kl_target got 0.1 and training.kl_coef 0.01, and there is no KL penalty",
        ),
        (
            {"config": {"training": {"adv_estimator": "grpo", "group_size": 1}}},
            "training.group_size got 1",
        ),
        (
            {"config": {"training": {"warm_start": "expert"}}},
            "Good has no expert. Give it an expert_action() method",
        ),
        (
            {"environment": LateExpert, "config": {"training": {"warm_start": "expert"}}},
            "LateExpert has no expert",
        ),
        ({"environment": make_good, "config": {"training": {"warm_start": "random"}}}, "no random"),
        (
            {"environment": None, "dataset": ROWS},
            "have no 'answer', and there is no reward function: every reply would earn 0",
        ),
        ({"config": {"logging": {"sinks": ["mlflow"]}}}, "pip install 'turnwise[mlflow]'"),
    ],
)
def test_it_is_refused_and_no_folder_stays(given, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    with pytest.raises(TurnwiseError) as caught:
        Trainer(**{"environment": Good, **given}, reporter=None).fit()
    assert text in str(caught.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not list(tmp_path.glob("runs/*"))


SERVER = ["inference.backend=vllm", "inference.url=http://127.0.0.1:8000"]
QLORA = ["model.load_in_4bit=true", "training.lora_rank=4"]
VLLM = ["inference.backend=vllm"]
ASLEEP = [*VLLM, "inference.options.sleep=true"]


@pytest.mark.parametrize(
    ("good", "more", "error"),
    [
        ([], ["model.tensor_parallel_size=2"], r"one device.*vllm or sglang"),
        ([*VLLM, "model.tensor_parallel_size=2"], ["inference.backend=transformers"], "one device"),
        (SERVER, ["inference.backend=local"], r"the local engine runs in this process.*vllm"),
        (SERVER, ["ray.use_ray=true", "ray.num_actors=2"], "num_actors got 2.*from one worker"),
        (QLORA, ["training.lora_rank=0"], "Set training.lora_rank"),
        (QLORA, VLLM, "inference.backend to local"),
        (QLORA, ["ray.use_ray=true"], "ray.use_ray to false"),
        (["training.kl_loss_coef=0.1"], ["training.kl_coef=0.2", "training.kl_loss_coef=0"], "KL"),
        (ASLEEP, ["training.max_staleness=2"], r"sleep got true.*max_staleness 2.*during updates"),
        ([], ["training.warm_start=exprt"], "got 'exprt', expected 'expert', 'random', or"),
    ],
)
def test_what_cannot_be_combined_or_has_no_effect_is_refused(good, more, error):
    check_settings(ConfigStore.load(overrides=good))
    with pytest.raises(ConfigError, match=error):
        check_settings(ConfigStore.load(overrides=[*good, *more]))


def test_a_warm_start_is_bounded():
    with pytest.raises(ConfigError, match="warm_start_steps got 100000000000"):
        ConfigStore.load(overrides=["training.warm_start_steps=100000000000"])
