"""What a run keeps for those who look at it later: its tokenizer, and when things began."""

import pytest
from tokenizers import Tokenizer

from trainer.worlds import small_model
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.run_folder import RunFolder


@pytest.fixture
def real(shown_runs):
    return RunFolder(shown_runs / "a" / "real")


def test_the_tokenizer_is_the_models_own(real):
    kept = Tokenizer.from_file(str(real.tokenizer_file))
    _, tokenizer = small_model()
    words = "<|im_start|>user\nGröße 😀<|im_end|>"
    assert kept.encode(words).ids == tokenizer.encode(words)


def test_phases_follow_each_other(real):
    store = EpisodeStore(real.episodes, 0)
    phases = store.phases(2)
    assert [name for name, _, _ in phases] == ["play", "log_probs", "update"]
    moments = [moment for _, start, end in phases for moment in (start, end)]
    assert moments == sorted(moments)
    assert [name for name, _, _ in store.phases(2, "eval-greedy")] == ["play"]


def test_episodes_and_turns_have_their_starts(real):
    store = EpisodeStore(real.episodes, 0)
    (_, start, end), *_ = store.phases(2)
    for episode in store.read(2):
        assert start - 0.05 <= episode.seconds["start"] <= end
        starts = [turn.seconds["start"] for turn in episode.agent.turns]
        assert starts == sorted(starts)
        assert starts[-1] <= episode.seconds["total"]
