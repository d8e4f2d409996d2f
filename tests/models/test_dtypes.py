"""A data type that the processor has to emulate is reported, once."""

import logging

import pytest
import torch

from turnwise import create_inference_engine, load_model
from turnwise.config import ConfigStore
from turnwise.learner.build import make_learner
from turnwise.models import dtypes


@pytest.fixture(autouse=True)
def warnings_begin_anew():
    dtypes._warn_once.cache_clear()
    yield
    dtypes._warn_once.cache_clear()


@pytest.fixture
def processor(monkeypatch):
    """One that computes float16 and not bfloat16, whatever this one does."""
    costs = {torch.bfloat16: 150.0, torch.float16: 4.0, torch.float32: 1.0}
    monkeypatch.setattr(dtypes, "cost_of_products", costs.__getitem__)


def reported(caplog):
    return [line.getMessage() for line in caplog.records if line.name == dtypes.__name__]


@pytest.mark.parametrize("dtype", ["auto", "float32", "float16"])
def test_nothing_is_reported_of_what_the_processor_can(processor, caplog, dtype):
    with caplog.at_level(logging.WARNING):
        load_model("tiny", dtype=dtype, device="cpu")
    assert not reported(caplog)


def test_an_emulated_type_is_reported_once_however_often_it_is_loaded(processor, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            load_model("tiny", dtype="bfloat16", device="cpu")
    (line,) = reported(caplog)
    assert "no fast instructions for bfloat16" in line
    assert "150 times as long" in line
    assert "use dtype float32" in line


def small_model():
    model = load_model("tiny", device="cpu").model
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    return model


def test_a_model_that_is_loaded_already_is_looked_at_too(processor, caplog):
    with caplog.at_level(logging.WARNING):
        model = small_model()
        assert not reported(caplog)
        make_learner(ConfigStore(), model)
        assert len(reported(caplog)) == 1
        dtypes._warn_once.cache_clear()
        create_inference_engine(model, "transformers", tokenizer="tiny").close()
    assert len(reported(caplog)) == 2


def test_the_real_processor_is_measured_and_float32_is_never_slow():
    assert dtypes.cost_of_products(torch.float32) == dtypes.cost_of_products(torch.float64) == 1.0
    assert dtypes.cost_of_products(torch.bfloat16) > 0.0
