"""Files that anybody may have written: read within limits, or refused with the reason."""

import json
import os

import pytest

from turnwise.bounded_files import MAX_DEPTH, parse_json, read_bytes, read_json_object
from turnwise.errors import ConfigError


def test_plain_files_and_nothing_else(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 5) == b"12345"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, words in {
        "file": "has 5 bytes, expected at most 4",
        "pipe": "is a pipe or a device, expected a file",
        ".": "is a folder, expected a file",
        "loop": "cannot read .*loop",
    }.items():
        with pytest.raises(ConfigError, match=words):
            read_bytes(tmp_path / name, 4)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none", 4)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "x is not JSON.*is empty"),
        (b"{", "x is not JSON: .* at column 2"),
        (b'{\n"a": }', "at line 2, column 6"),
        (b"\xff{}", "x is not UTF-8"),
        (b"[" * 100_000, "x is nested too deeply"),
        (b"[" * 500 + b"]" * 500, "x is nested too deeply, expected at most 100"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "x is nested too deeply"),
        (b"1" * 5000, "not JSON that can be read: Exceeds the limit"),
    ],
)
def test_json_that_is_none(data, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse_json(data, "x")
    assert len(str(caught.value)) < 300


def test_json_as_deep_as_is_read_can_be_written_again():
    data = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert json.dumps(parse_json(data, "x")).encode() == data


def test_an_object_is_asked_for(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"a\.json holds '\[1\]', expected a JSON object"):
        read_json_object(tmp_path / "a.json", 100)
