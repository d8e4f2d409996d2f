"""What the tests of the documents' blocks share."""

import pytest

import turnwise
from docs.seed_blocks import SOURCES
from turnwise.config import InferenceConfig, TrainingConfig


@pytest.fixture(params=SOURCES)
def source(request):
    """Our own blocks, and those of the documents if they lie beside the checkout."""
    return request.param


@pytest.fixture(scope="module")
def engine():
    with turnwise.create_inference_engine("tiny") as engine:
        yield engine


@pytest.fixture
def short_runs(tmp_path, monkeypatch):
    """Runs of the tiny model in a folder of their own, with two short episodes a step."""
    monkeypatch.chdir(tmp_path)
    small = {
        TrainingConfig: {"batch_size": 2, "steps_per_epoch": 1},
        InferenceConfig: {"max_tokens": 4, "max_turns": 2},
    }
    for section, values in small.items():
        plain = section.__init__

        def shortened(self, *args, plain=plain, values=values, **given):
            plain(self, *args, **{**values, **given})

        monkeypatch.setattr(section, "__init__", shortened)
    return tmp_path
