"""What a run keeps for those who look at it later: its tokenizer, and when things began."""

import time

import pytest
from tokenizers import Tokenizer

from trainer.worlds import Memory, small_model, small_trainer
from turnwise.episode import EpisodeCollector
from turnwise.inference import create_inference_engine
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.run_folder import RunFolder
from turnwise.trainer.records import Records
from turnwise.trainer.reporter import LogReporter
from view.runs_to_view import SMALL


@pytest.fixture
def real(shown_runs):
    return RunFolder(shown_runs / "a" / "real")


def test_the_tokenizer_is_the_models_own(real):
    kept = Tokenizer.from_file(str(real.tokenizer_file))
    _, tokenizer = small_model()
    words = "<|im_start|>user\nGröße 😀<|im_end|>"
    assert kept.encode(words).ids == tokenizer.encode(words)


def test_a_tokenizer_that_cannot_be_kept_stops_nobody(tmp_path, caplog):
    with small_trainer(tmp_path, Memory, *SMALL) as trainer:
        folder = RunFolder(tmp_path / "run")
        folder.path.mkdir()
        records = Records(folder, trainer.config, "Memory", LogReporter(), {}, {})

        class Broken:
            def to_str(self):
                raise OSError("no space left")

        class Wrapped:
            backend_tokenizer = Broken()

        records.keep_tokenizer(Wrapped())
        records.keep_tokenizer(object())  # one of Python alone has nothing to keep
    assert "no space left" in caplog.text
    assert list(folder.path.iterdir()) == []


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


def test_what_was_played_without_a_trainer_has_no_start(tmp_path):
    engine = create_inference_engine("tiny", "scripted", policy=lambda text: "a")
    played = EpisodeCollector(engine, Memory).collect_sync(1)
    assert 0 <= time.time() - played[0].started < 60
    store = EpisodeStore(tmp_path, 1e9)
    store.write(1, list(played))
    (episode,) = store.read(1)
    assert "start" not in episode.seconds
    assert all("start" not in turn.seconds for turn in episode.agent.turns)
    assert store.phases(1) == []
