"""Datasets in files that are broken: the error has the file, the line, and what was expected."""

import os

import pytest

from turnwise import ConfigError, PromptDataset
from turnwise.trainer.warm_start import read_conversations

LINES = {
    b'{"prompt": "a"}\n{"prompt"': r"line 2 is not JSON: .* at column 10; it begins with",
    b'{"prompt": "a"}\n\n["x"]': r"line 3 is \['x'\] \(list\), expected a text or a dict",
    b'{"prompt": "a"}\n{"promp": "b"}': "line 2 has no 'prompt'. Did you mean 'promp'",
    b'{"prompt": 3}': r"line 1: a prompt is 3 \(int\), expected a text",
    b'{"prompt": [{"role": 1, "content": 2}]}': r"line 1: ",
    b'{"prompt": "\\ud800"}': "line 1: the prompt is not text: .*surrogates",
    b'{"prompt": ' + b"9" * 5000 + b"}": "line 1 is not JSON that can be read: Exceeds the limit",
    b"[" * 100_000: "line 1 is nested too deeply",
    b'{"prompt": "a", "x": ' + b"[" * 300 + b"]" * 300 + b"}": "line 1 is nested too deeply",
    '{"prompt": "ü"}'.encode("latin-1"): "line 1 is not UTF-8: .* Save the file as UTF-8",
    '{"prompt": "ü"}'.encode("utf-16"): "line 1 is not UTF-8",
    b"null": r"line 1 is None \(NoneType\)",
    b"": "is empty, expected rows with a prompt",
    b"\n \n": "there are no rows in",
}
ARRAYS = {
    b"[" * 100_000: "nested too deeply",
    b'[{"prompt": 1' + b"0" * 5000 + b"}]": "not JSON that can be read: Exceeds the limit",
    b'{"prompt": "a"}\n{"prompt": "b"}': r"Extra data at line 2.* Then name it rows\.jsonl",
    b'{"prompt": "a"}': "holds a dict, .* expected a list of rows",
    b'[{"prompt": "a"},': "is not JSON: .*column",
    b"\xff": "is not UTF-8",
}


@pytest.mark.parametrize(("kind", "cases"), [("jsonl", LINES), ("json", ARRAYS)])
def test_what_is_no_json(tmp_path, kind, cases):
    path = tmp_path / f"rows.{kind}"
    for content, words in cases.items():
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=words) as caught:
            PromptDataset(path)
        assert str(path) in str(caught.value), content[:40]
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_what_is_no_file(tmp_path, kind):
    folder, pipe, loop = (tmp_path / f"{name}.{kind}" for name in ("folder", "pipe", "loop"))
    folder.mkdir()
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for path, words in {
        folder: "is a folder, expected a file",
        pipe: "is not a plain file",
        loop: "is not a plain file",
        tmp_path / f"none.{kind}": "is not there",
    }.items():
        with pytest.raises(ConfigError, match=words):
            PromptDataset(path)


def test_a_table_says_how_it_is_given(tmp_path):
    with pytest.raises(ConfigError, match=r"read_csv\(path\)\.to_dict\('records'\)"):
        PromptDataset(str(tmp_path / "rows.csv"))


def test_a_parquet_file_with_any_byte_changed(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(arrow.table({"prompt": ["a", "b"], "n": [1, 2]}), path)
    data = path.read_bytes()
    refused = []
    for place in range(len(data)):
        spoiled = bytearray(data)
        spoiled[place] ^= 0xFF
        path.write_bytes(spoiled)
        try:
            list(PromptDataset(path))
        except ConfigError as error:
            refused.append(str(error))
    assert len(refused) > 10
    assert all(str(path) in words for words in refused)


def test_conversations_to_imitate(tmp_path):
    path = tmp_path / "talks.jsonl"
    for content, words in {
        b"\xff": "is not UTF-8",
        b"[" * 100_000: "line 1: expected .*nested too deeply",
        b'\n{"messages": 3}': "line 2: expected",
        b'{"messages": [3]}': "line 1: expected",
        b'{"messages": [{"role": "assistant", "content": 3}]}': "text in each",
        b"": "holds no conversations",
    }.items():
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            read_conversations(path, None)
