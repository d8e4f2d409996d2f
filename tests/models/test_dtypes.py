"""A data type that the processor has to emulate is reported, once."""

import logging

import pytest

from turnwise import load_model
from turnwise.models import load


@pytest.mark.parametrize(("times", "num_lines"), [(150.0, 1), (4.0, 0)])
def test_an_emulated_type_is_reported_once_however_often_it_is_loaded(
    monkeypatch, caplog, times, num_lines
):
    seconds = iter([times, 1.0])
    monkeypatch.setattr("timeit.repeat", lambda run, **_: [next(seconds)])
    load._warn_if_emulated.cache_clear()
    with caplog.at_level(logging.WARNING, "turnwise"):
        for dtype in ("bfloat16", "bfloat16", "float32", "auto"):
            load_model("tiny", dtype=dtype, device="cpu")
    load._warn_if_emulated.cache_clear()
    lines = [line.getMessage() for line in caplog.records]
    assert ["no fast instructions for bfloat16" in line for line in lines] == [True] * num_lines
