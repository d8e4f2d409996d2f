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
