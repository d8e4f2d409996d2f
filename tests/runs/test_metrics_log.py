"""The metrics file: whole lines, the same bytes, and a resumed run's equal to any other's."""

import math
import resource
import signal

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from turnwise import CheckpointError, ConfigError
from turnwise.runs.metrics_log import MetricsLog, MetricsReader

VALUES = st.one_of(st.floats(), st.integers(), st.booleans(), st.text())
METRICS = st.dictionaries(st.text().filter(lambda name: name != "step"), VALUES, max_size=5)


@pytest.fixture
def log(tmp_path):
    return MetricsLog(tmp_path / "run" / "metrics.jsonl")


def fill(log, num_steps):
    for step in range(1, num_steps + 1):
        log.append({"step": step, "reward": step / 3, "time/step": 1e-7})


def test_lines_are_json_in_the_order_given(log):
    log.append({"step": 1, "reward": 0.1, "loss": 1e-30, "note": "ok", "resumed": False})
    log.append({"step": 2, "reward": np.float64(0.1), "errors": 3})
    first, second = log.path.read_text().splitlines()
    assert first == '{"step": 1, "reward": 0.1, "loss": 1e-30, "note": "ok", "resumed": false}'
    assert second == '{"step": 2, "reward": 0.1, "errors": 3}'


def test_what_is_no_metric_is_refused_by_name_and_nothing_is_written(log):
    with pytest.raises(ConfigError, match=r"'reward' got a list, expected a number"):
        log.append({"step": 1, "reward": [1.0]})
    assert not log.path.exists()


def test_no_file_has_no_lines(log):
    assert log.read() == []
    log.rewind(3)
    assert not log.path.exists()


@settings(max_examples=40, deadline=None)
@given(lines=st.lists(METRICS, max_size=5))
def test_every_finite_value_comes_back_exactly(tmp_path_factory, lines):
    log = MetricsLog(tmp_path_factory.mktemp("log") / "metrics.jsonl")
    for line in lines:
        log.append(line)
    expected = [
        {k: v for k, v in line.items() if not isinstance(v, float) or math.isfinite(v)}
        for line in lines
    ]
    assert log.read() == expected
    assert [list(line) for line in log.read()] == [list(line) for line in expected]
    assert [repr(line) for line in log.read()] == [repr(line) for line in expected]


@settings(max_examples=40, deadline=None)
@given(num_steps=st.integers(0, 6), step=st.integers(-1, 8), torn=st.booleans())
def test_after_a_rewind_the_file_is_what_it_was_at_that_step(
    tmp_path_factory, num_steps, step, torn
):
    folder = tmp_path_factory.mktemp("log")
    log, expected = MetricsLog(folder / "a"), MetricsLog(folder / "b")
    log.append({"model": "tiny"})  # a line that belongs to no step stays
    expected.append({"model": "tiny"})
    fill(log, num_steps)
    fill(expected, min(num_steps, step))
    if torn:
        with open(log.path, "ab") as file:
            file.write(b'{"step": 99, "rew')
    log.rewind(step)
    assert log.path.read_bytes() == expected.path.read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]


def test_a_crash_at_any_byte_of_a_line_loses_that_line_only(log, caplog):
    fill(log, 3)
    whole = log.path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for length in range(start, len(whole) - 1):
        log.path.write_bytes(whole[:length])
        caplog.clear()
        assert [line["step"] for line in log.read()] == [1, 2]
        assert len(caplog.records) == (length != start)
        log.append({"step": 9})
        assert [line["step"] for line in log.read()] == [1, 2, 9]


def test_a_whole_last_line_without_its_newline_counts(log, caplog):
    fill(log, 3)
    log.path.write_bytes(log.path.read_bytes().removesuffix(b"\n"))
    reader = MetricsReader()
    reader.update(log.path)
    assert reader.lines == log.read()
    assert len(reader.lines) == 3
    log.append({"step": 4})
    assert not reader.update(log.path)
    assert [line["step"] for line in reader.lines] == [1, 2, 3, 4]
    assert reader.lines == log.read()
    log.path.write_bytes(log.path.read_bytes().removesuffix(b"\n"))
    log.rewind(4)
    assert log.path.read_bytes().endswith(b'{"step": 4}\n')
    assert not caplog.records
    log.path.write_bytes(b"[" * 200_000)
    assert log.read() == []


@pytest.mark.parametrize("bad", [b"", b"nonsense", b"[1]", b'{"a": "\xff"}'])
@pytest.mark.parametrize("use", [MetricsLog.read, lambda log: log.rewind(1)])
def test_a_bad_line_in_the_middle_is_an_error_with_its_number(log, bad, use):
    log.path.parent.mkdir()
    content = b'{"step": 1}\n' + bad + b'\n{"step": 2}\n'
    log.path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2"):
        use(log)
    assert log.path.read_bytes() == content


def test_a_full_disk_leaves_no_half_line(log):
    fill(log, 2)
    before = log.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
        with pytest.raises(CheckpointError, match=r"cannot save .*checkpoint\.output_dir"):
            log.append({"step": 3, "reward": 0.123456789})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [line["step"] for line in log.read()] == [1, 2]
