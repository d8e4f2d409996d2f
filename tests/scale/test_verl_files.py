"""What is read and computed for VERL's own trainer, without VERL."""

import logging

import pytest

from turnwise import CheckpointError, ConfigStore, EpisodeLimits
from turnwise.scale.verl.settings import Resources, to_verl_config
from turnwise.scale.verl.trainer import newest_step, take_metrics

LENGTH = "data.max_response_length"
SETTINGS = ("inference.max_turns=4", "inference.max_tokens=100")


def response_length(tmp_path, *overrides, limits=None):
    config = ConfigStore.load(overrides=[*SETTINGS, *overrides])
    return to_verl_config(config, Resources("tiny", 8192, 0, tmp_path), limits=limits)[LENGTH]


def test_the_length_of_a_response_follows_the_limits(tmp_path):
    assert response_length(tmp_path) == 4 * 100 + 3 * 256
    assert response_length(tmp_path, "limits.max_turns=2") == 2 * 100 + 256
    assert response_length(tmp_path, "limits.max_tokens_per_turn=50") == 4 * 50 + 3 * 256
    assert response_length(tmp_path, "limits.max_tokens=300") == 300
    limits = EpisodeLimits(max_turns=3, max_tokens_per_turn=70)
    assert response_length(tmp_path, limits=limits) == 3 * 70 + 2 * 256


def test_a_half_line_of_verls_logger_is_left_out(tmp_path, caplog):
    path = tmp_path / "verl-metrics.jsonl"
    lines = ['{"step": 1, "data": {"x": 2.0}}', "[]", '{"step": 2}', '{"step": 3, "da']
    path.write_text("\n".join(lines))
    with caplog.at_level(logging.WARNING, "turnwise"):
        assert take_metrics(tmp_path) == [(1, {"x": 2.0})]
    assert len(caplog.records) == 3
    assert "line 4" in caplog.text
    assert not path.exists()


def test_a_line_of_verls_logger_ends_with_a_line_feed_alone(tmp_path):
    path = tmp_path / "verl-metrics.jsonl"
    path.write_text('{"step": 1, "data": {"text": "a\u2028b"}}\n', encoding="utf-8")
    assert take_metrics(tmp_path) == [(1, {"text": "a\u2028b"})]


def test_a_damaged_number_of_verls_newest_checkpoint_is_named(tmp_path):
    assert newest_step(tmp_path) == 0
    folder = tmp_path / "verl"
    folder.mkdir()
    file = folder / "latest_checkpointed_iteration.txt"
    file.write_text("12\n")
    assert newest_step(tmp_path) == 12
    file.write_bytes(b"1\xff")
    with pytest.raises(CheckpointError, match="expected the step of VERL's newest checkpoint"):
        newest_step(tmp_path)
