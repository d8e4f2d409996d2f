"""Settings that cannot be trained with are refused before anything is loaded."""

import pytest

from turnwise import ConfigError, ConfigStore
from turnwise.trainer.checks import check_settings

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
