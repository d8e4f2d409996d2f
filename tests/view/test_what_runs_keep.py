"""What a run keeps for those who look at it later: its tokenizer, and when things began."""

import pytest
from tokenizers import Tokenizer

from trainer.worlds import small_model
from turnwise.runs.run_folder import RunFolder


@pytest.fixture
def real(shown_runs):
    return RunFolder(shown_runs / "a" / "real")


def test_the_tokenizer_is_the_models_own(real):
    kept = Tokenizer.from_file(str(real.tokenizer_file))
    _, tokenizer = small_model()
    words = "<|im_start|>user\nGröße 😀<|im_end|>"
    assert kept.encode(words).ids == tokenizer.encode(words)
