"""Every setting is one that a resumed run may change, or one that it may not, with a reason."""

import re
from pathlib import Path

from turnwise import ConfigStore
from turnwise.config import EnvironmentItem
from turnwise.runs.choose_folder import FIXED, changes_between, refusals

DOCS = Path(__file__).parents[2] / "docs" / "runs.md"
SETTINGS = dict(ConfigStore().settings())
FREE_SECTIONS = ("checkpoint.", "logging.", "ray.", "limits.", "eval_dataset.")
MAY_CHANGE = {
    *(name for name in SETTINGS if name.startswith(FREE_SECTIONS)),
    *("model.device", "model.tensor_parallel_size", "model.trust_remote_code"),
    *("inference.backend", "inference.max_tokens", "inference.temperature", "inference.top_p"),
    *("inference.multi_turn", "inference.max_turns", "inference.start_timeout"),
    *("inference.stall_timeout", "inference.enable_thinking", "inference.thoughts"),
    *("inference.options", "inference.url", "inference.summary_prompt", "inference.stale_kv"),
    *("training.learning_rate", "training.lr_schedule", "training.warmup_steps"),
    *("training.num_epochs", "training.steps_per_epoch", "training.eval_episodes"),
    *("training.group_size", "training.resample", "training.on_error", "training.lam"),
    *("training.clip_ratio", "training.policy_loss", "training.loss_agg_mode"),
    *("training.entropy_coef", "training.value_coef", "training.use_kl_in_reward"),
    *("training.kl_coef", "training.kl_target", "training.kl_loss_coef", "training.target_kl"),
    *("training.max_grad_norm", "training.adv_options", "training.policy_loss_options"),
    *("training.clip_ratio_low", "training.optimizer_options", "training.clip_ratio_high"),
    *("training.kl_horizon", "training.kl_penalty", "training.kl_loss_type"),
    *("training.value_clip", "training.importance_level", "training.importance_bounds"),
    *("training.adam_betas", "training.adam_epsilon", "training.weight_decay"),
    *("training.update_epochs", "training.mini_batch_size", "training.micro_batch_tokens"),
    *("training.gradient_checkpointing", "training.max_log_prob_gap", "training.lora_dropout"),
    *("training.offload_optimizer", "training.max_staleness", "training.max_steps"),
    "training.eval_steps",
    "parser",
}
"""New settings go here, or with a reason into `FIXED`."""


def test_every_setting_is_decided_on():
    """A new setting fails here until it is put into one of the two, and into the docs' table."""
    assert set(FIXED) | MAY_CHANGE == set(SETTINGS)
    assert not set(FIXED) & MAY_CHANGE
    assert all(reason and not reason.endswith(".") for reason in FIXED.values())


def test_the_docs_list_the_settings_that_may_not_change():
    _, _, text = DOCS.read_text().partition("## Resuming with other settings")
    text, _, _ = text.partition("\n## ")
    listed = {
        name
        for row in re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
        for name in re.findall(r"`([\w.]+)`", row)
    }
    assert listed == set(FIXED)


def another_value(value):
    if isinstance(value, bool):
        return not value
    return {int: 7, float: 0.125, str: "x", list: ["wandb"], dict: {"a": 1}}.get(type(value), 3)


def test_a_change_of_each_is_seen_and_refused_or_not():
    for name, was in SETTINGS.items():
        before, now = ConfigStore(), ConfigStore()
        section, _, field = name.rpartition(".")
        value = [EnvironmentItem("e.py:E")] if name == "environments" else another_value(was)
        setattr(getattr(now, section) if section else now, field, value)
        assert changes_between(before, now) == [(name, was, value)]
        refused = refusals(before, now)
        if name in FIXED:
            (why,) = refused
            assert why.startswith(f"{name} was {was!r} and is ")
            assert why.endswith(FIXED[name])
        elif name in ("training.use_kl_in_reward", "training.kl_loss_coef"):
            assert "reference model" in refused[0]
            assert refusals(now, before) == []
        else:
            assert refused == []
