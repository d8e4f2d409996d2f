"""JSON files: what is wrong with one is an error that names it."""

import pytest

from turnwise.errors import ConfigError
from turnwise.json_files import read_json_object


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "x.json is not JSON"),
        (b'{\n"a": }', "line 2 column 6"),
        (b"\xff{}", "x.json is not UTF-8"),
        (b"[1]", r"x\.json holds '\[1\]', expected a JSON object"),
    ],
)
def test_json_that_is_none(tmp_path, data, words):
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        read_json_object(tmp_path / "x.json")


def test_a_folder_and_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        read_json_object(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_json_object(tmp_path / "none")
