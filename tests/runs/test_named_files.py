"""Every setting that can name a file is known as one, so that it is found from any folder."""

from turnwise import ConfigStore
from turnwise.config import DatasetConfig, EnvironmentItem, RewardItem, setting_types
from turnwise.runs.places import NAMES, names_in

NO_FILES = {
    *("model.device", "system_prompt", "inference.summary_prompt"),
    *("inference.options", "inference.url"),
    *("checkpoint.output_dir", "checkpoint.run_name", "checkpoint.best_metric"),
    *("dataset.split", "dataset.prompt_key", "dataset.columns", "eval_dataset.split"),
    *("eval_dataset.prompt_key", "eval_dataset.columns", "environment.params"),
    *("ray.address", "logging.sinks", "logging.wandb", "training.lora_target_modules"),
    *("training.adv_options", "training.policy_loss_options", "training.optimizer_options"),
}
"""Texts that name something else, or that only the user's environment can understand."""


def test_every_setting_that_holds_text_is_a_name_of_a_file_or_of_something_else():
    kinds = {name: str(kind) for name, (_, kind) in setting_types().items()}
    with_text = {name for name, kind in kinds.items() if "str" in kind or "Item" in kind}
    assert with_text == NAMES.keys() | NO_FILES


def test_all_names_are_rewritten_and_nothing_else():
    rows = DatasetConfig(path=["a.jsonl", "b.jsonl"])
    config = ConfigStore()
    config.reward = [RewardItem("r.py:f", 2.0), RewardItem(None)]
    config.tools = ["t.py:f", {"tool": "u.py:f", "depth": 2}, {"mcp": "serve x"}]
    config.tools.append({"tool": "python", "packages": ["libs"]})
    config.environments = [EnvironmentItem("e.py:E", dataset=rows, tools=["v.py:f"], reward="w:f")]
    config.training.warm_start = "warm.jsonl"
    before = config.to_yaml()
    found = {name.setting: name.text for name in names_in(config)}
    assert found == {
        "inference.backend": "local",
        "environment.name": "guess-number",
        "environments.0.environment": "e.py:E",
        "environments.0.reward": "w:f",
        "environments.0.tools.0": "v.py:f",
        "environments.0.dataset.path.0": "a.jsonl",
        "environments.0.dataset.path.1": "b.jsonl",
        "reward.0.function": "r.py:f",
        "tools.0": "t.py:f",
        "tools.1.tool": "u.py:f",
        "tools.3.tool": "python",
        "tools.3.packages.0": "libs",
        "parser": "auto",
        "model.model_name": "tiny",
        "training.adv_estimator": "gae",
        "training.policy_loss": "ppo",
        "training.optimizer": "adamw",
        "training.warm_start": "warm.jsonl",
    }
    for name in names_in(config):
        name.replace(f"new {name.text}")
    assert {name.text for name in names_in(config)} == {f"new {text}" for text in found.values()}
    for name in names_in(config):
        name.replace(name.text.removeprefix("new "))
    assert config.to_yaml() == before
