"""Settings that cannot be trained with are refused before anything is loaded."""

import pytest

from turnwise import ConfigError, ConfigStore
from turnwise.trainer.checks import check_settings


@pytest.mark.parametrize("backend", ["local", "transformers"])
def test_an_engine_on_one_device_refuses_a_model_that_is_split(backend):
    overrides = [f"inference.backend={backend}", "model.tensor_parallel_size=2"]
    with pytest.raises(
        ConfigError, match=r"tensor_parallel_size got 2.*one device.*vllm or sglang"
    ):
        check_settings(ConfigStore.load(overrides=overrides))
    check_settings(ConfigStore.load(overrides=["inference.backend=vllm", overrides[1]]))


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["training.kl_coef=0.2"], r"kl_coef got 0.2, and there is no KL penalty"),
        (["logging.wandb.project=mine"], r"logging.wandb has settings, and nothing is sent"),
    ],
)
def test_a_setting_without_effect_is_refused(overrides, error):
    with pytest.raises(ConfigError, match=error):
        check_settings(ConfigStore.load(overrides=overrides))
    use = ["training.use_kl_in_reward=true", "logging.sinks=[wandb]"]
    check_settings(ConfigStore.load(overrides=[*overrides, *use]))


def test_a_warm_start_is_bounded():
    with pytest.raises(ConfigError, match="warm_start_steps got 100000000000"):
        ConfigStore.load(overrides=["training.warm_start_steps=100000000000"])
