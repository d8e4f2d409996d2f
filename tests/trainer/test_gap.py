"""A run whose episodes come from another model than the one that is trained stops."""

from contextlib import nullcontext

import pytest

from trainer.worlds import Echo, small_model, small_trainer
from turnwise import TrainingStopped
from turnwise.inference import SamplingParams, create_inference_engine
from turnwise.trainer.learning import check_gap

NO_WARM_START = ("training.warm_start=null", "training.batch_size=4", "training.num_epochs=1")
SHORT = (*NO_WARM_START, "training.steps_per_epoch=2")


def sample_from(trainer, model):
    """Let the trainer's episodes be played by a real engine on another model."""
    engine = create_inference_engine(model, "local", tokenizer=trainer.components.tokenizer)
    trainer.components.engine.close()
    trainer.components.engine = trainer.components.collector.setup.engine = engine


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
@pytest.mark.parametrize("more", [(), ("training.mini_batch_size=2", "training.update_epochs=2")])
def test_episodes_of_another_model_stop_a_run(tmp_path, estimator, more):
    overrides = (f"training.adv_estimator={estimator}", *more)
    with small_trainer(tmp_path, Echo, *SHORT, *overrides) as trainer:
        sample_from(trainer, small_model(seed=1)[0])
        with pytest.raises(TrainingStopped, match=r"gap_max.*at most 0.01.*max_log_prob_gap"):
            trainer.fit()
    assert trainer.step == 0
    assert not list((trainer.run_folder / "checkpoints").glob("step-*"))


def test_the_check_can_be_loosened_and_disabled(tmp_path):
    for name, allowed in (("disabled", "null"), ("loose", "50")):
        more = (f"training.max_log_prob_gap={allowed}", "training.steps_per_epoch=1")
        with small_trainer(tmp_path / name, Echo, *SHORT, *more) as trainer:
            sample_from(trainer, small_model(seed=1)[0])
            (metrics,) = trainer.fit()
            assert metrics["gap_max"] > 0.01


@pytest.mark.parametrize(
    ("setting", "is_exact", "metrics", "sampling", "message"),
    [
        ("auto", True, {"gap_max": 7.0}, {"temperature": 0.7}, "7 nats"),
        ("auto", True, {"gap_max": 0.009}, {}, None),
        ("auto", True, {"gap_max": 7.0, "weights_behind": 1}, {}, None),
        ("auto", True, {}, {}, None),
        ("auto", True, {"gap_max": 7.0}, {"top_p": 0.9}, None),
        ("auto", True, {"gap_max": 7.0}, {"top_k": 5}, None),
        ("auto", True, {"gap_max": 7.0}, {"min_p": 0.1}, None),
        (None, True, {"gap_max": 7.0}, {}, None),
        # As bfloat16 and quantised engines have it: single tokens far off, the mean close.
        ("auto", False, {"gap_max": 4.0, "gap_mean": 0.1}, {}, None),
        ("auto", False, {"gap_mean": 7.0}, {}, r"gap_mean is 7 nats.*at most 0.5"),
        (0.05, False, {"gap_mean": 0.1}, {}, r"at most 0\.05"),
    ],
)
def test_a_gap_that_is_not_expected_stops_the_run(setting, is_exact, metrics, sampling, message):
    expected = pytest.raises(TrainingStopped, match=message) if message else nullcontext()
    with expected:
        check_gap(setting, metrics, SamplingParams(**sampling), is_exact=is_exact)
