"""Our settings in VERL's words: what they become, what VERL knows of it, and what it cannot do."""

import pytest

from beside_verl.mapping import ACTOR, GPU, HERE, MODEL, ROLLOUT, mapped
from turnwise import ConfigError
from turnwise.scale.verl.settings import ESTIMATORS, OWN_SECTION, POLICY_LOSSES, check, compose


@pytest.mark.parametrize(
    ("setting", "value", "target", "expected"),
    [
        ("model__trust_remote_code", True, "data.trust_remote_code", True),
        ("inference__max_turns", 3, f"{ROLLOUT}.multi_turn.max_assistant_turns", 3),
        ("inference__multi_turn", False, f"{ROLLOUT}.multi_turn.max_assistant_turns", 1),
        ("inference__max_turns", 2, "data.max_response_length", 2 * 64 + 256),
        ("training__adv_estimator", "dr_grpo", "algorithm.norm_adv_by_std_in_grpo", False),
        ("training__learning_rate", 3e-5, "critic.optim.lr", 3e-5),
        ("training__clip_ratio", 0.3, f"{ACTOR}.clip_ratio_high", 0.3),
        ("training__num_epochs", 7, "trainer.total_training_steps", 70),
        ("training__kl_target", 0.5, "algorithm.kl_ctrl.type", "adaptive"),
        ("training__policy_loss", "ppo", f"{ACTOR}.policy_loss.loss_mode", "vanilla"),
        ("training__kl_loss_coef", 0.1, f"{ACTOR}.use_kl_loss", True),
        ("training__max_grad_norm", None, f"{ACTOR}.optim.clip_grad", 1e9),
        ("training__lora_rank", 8, f"{MODEL}.lora_alpha", 16),
        ("training__eval_episodes", 5, "trainer.test_freq", 10),
        ("checkpoint__save_interval", 2, "trainer.save_freq", 20),
        ("ray__num_learners", 2, "trainer.n_gpus_per_node", 2),
        ("logging__sinks", ["wandb"], "trainer.logger", ["console", "file", "wandb"]),
    ],
)
def test_what_a_setting_becomes(setting, value, target, expected):
    assert mapped(GPU, **{setting: value})[target] == expected


def test_the_machine_decides_the_workers_and_the_folder():
    settings = mapped()
    assert settings["trainer.n_gpus_per_node"] == 4
    assert settings[f"{ROLLOUT}.name"] == "vllm"
    assert settings[f"{ROLLOUT}.dtype"] == "bfloat16"
    assert settings[f"{MODEL}.path"] == settings["critic.model.path"] == "/models/tiny"
    assert settings["trainer.default_local_dir"] == "/runs/one/verl"


def test_a_mini_batch_is_whole_groups():
    settings = {"training__adv_estimator": "grpo", "training__group_size": 4}
    assert mapped(**settings, training__mini_batch_size=64)[f"{ACTOR}.ppo_mini_batch_size"] == 16
    with pytest.raises(ConfigError, match="whole groups of 4"):
        mapped(**settings, training__mini_batch_size=6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"training__adv_estimator": "gigpo"}, "gigpo.*VERL has:.*grpo"),
        ({"inference__backend": "scripted"}, "VERL has: local, vllm, sglang"),
        ({"model__device": "cpu"}, "VERL has: auto, cuda"),
        ({"training__lora_alpha": 4}, "lora_rank is 0"),
        ({"ray__gpus_per_worker": 0.5}, "VERL has: 0, 1"),
        ({"logging__sinks": ["smoke"]}, "VERL has: tensorboard"),
    ],
)
def test_what_verl_cannot_do_is_said(settings, message):
    with pytest.raises(ConfigError, match=message):
        mapped(**settings)


# Read by VERL's engines and by ray.init, and in no file of VERL's config.
ADDED = (".mixed_precision.", "agent.agent_loop_manager_class", "ray_init.address")


def test_every_target_is_in_verls_own_config():
    from omegaconf import OmegaConf

    plain = compose({}, ["actor_rollout_ref.rollout.name=vllm"])
    for name in mapped(training__kl_target=0.5, training__lora_rank=8, ray__address="auto"):
        if any(added in name for added in ADDED):
            continue
        parent, _, last = name.rpartition(".")
        assert last in OmegaConf.select(plain, parent), f"VERL's config has no {name}"


def test_every_name_is_one_that_verl_has_registered():
    from verl.trainer.ppo import core_algos

    for name in POLICY_LOSSES.values():
        assert core_algos.get_policy_loss_fn(name) is not None
    for name in ESTIMATORS.values():
        assert core_algos.get_adv_estimator_fn(name) is not None


def test_overrides_stand_above_our_settings():
    settings = {**mapped(HERE), f"{OWN_SECTION}.drops_groups": False}
    config = compose(settings, ["trainer.total_epochs=5", "algorithm.gamma=0.5"])
    assert config.trainer.total_epochs == 5
    assert config.algorithm.gamma == 0.5
    assert config.trainer.default_local_dir == "/runs/one/verl"
    check(config)


def test_an_override_that_verl_does_not_know_is_a_plain_error():
    with pytest.raises(ConfigError, match="total_epoks"):
        compose(mapped(), ["trainer.total_epoks=5"])


def test_what_verl_finds_wrong_is_said_as_ours():
    config = compose(mapped(HERE), [f"{ACTOR}.loss_agg_mode=nonsense"])
    with pytest.raises(ConfigError, match=r"(?s)VERL cannot run with these settings.*nonsense"):
        check(config)
