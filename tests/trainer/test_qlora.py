"""QLoRA: adapters on 4-bit weights are trained like others, where bitsandbytes is installed."""

import importlib.util

import pytest

from trainer.worlds import training
from turnwise import ConfigStore, MissingExtraError
from turnwise.models import load_model

HAS_BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is not None


def settings(*overrides):
    return ConfigStore.load(overrides=["model.load_in_4bit=true", *overrides])


@pytest.mark.skipif(HAS_BITSANDBYTES, reason="bitsandbytes is installed")
def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(MissingExtraError, match=r"bitsandbytes.*turnwise\[qlora\]"):
        load_model("tiny", load_in_4bit=True)


@pytest.mark.skipif(not HAS_BITSANDBYTES, reason="needs bitsandbytes")
def test_a_run_with_4_bit_weights_is_trained_resumed_and_exported(tmp_path):
    from turnwise import Trainer, load_trained_model

    overrides = (
        *training(
            "lora_rank=4 adv_estimator=grpo batch_size=2 group_size=4 learning_rate=0.01 "
            "steps_per_epoch=1"
        ),
        "environment.name=guess-number",
        f"checkpoint.output_dir={tmp_path}",
        "checkpoint.run_name=qlora",
        "model.device=cpu",
    )
    for num_epochs in (1, 2):
        trainer = Trainer(settings(*overrides, f"training.num_epochs={num_epochs}"))
        with trainer:
            history = trainer.fit()
            learner = trainer.components.learner
            layer = learner.model.policy.model.layers[0].self_attn.q_proj
            assert type(layer.get_base_layer()).__name__ == "Linear4bit"
            assert learner.num_updates == num_epochs
            assert history[-1]["gap_max"] < 1e-4
    loaded, _ = load_trained_model(tmp_path / "qlora")
    assert type(loaded.model.model.layers[0].self_attn.q_proj).__name__ == "Linear"
