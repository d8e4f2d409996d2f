"""Datasets in files that are broken: the error has the file, the line, and what was expected."""

import pytest

from turnwise import ConfigError, PromptDataset
from turnwise.trainer.warm_start import read_conversations

LINES = {
    b'{"prompt": "a"}\n{"prompt"': r"line 2 is not JSON: .* column 10 .*; it begins with",
    b'{"prompt": "a"}\n\n["x"]': r"line 3 is \['x'\] \(list\), expected a text or a dict",
    b'{"prompt": "a"}\n{"promp": "b"}': "line 2 has no 'prompt'. Did you mean 'promp'",
    b'{"prompt": 3}': r"line 1: a prompt is 3 \(int\), expected a text",
    '{"prompt": "ü"}'.encode("latin-1"): "line 1 is not UTF-8: .* Save the file as UTF-8",
    b"": "there are no rows in",
}
ARRAYS = {
    b'{"prompt": "a"}': r"holds a dict, expected a list of rows.* a \.jsonl file",
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


def test_conversations_to_imitate(tmp_path):
    path = tmp_path / "talks.jsonl"
    for content, words in {
        b"\xff": "UTF-8",
        b'\n{"messages": 3}': "line 2: expected",
        b'{"messages": [3]}': "line 1: expected",
        b'{"messages": [{"role": "assistant", "content": 3}]}': "a text in each",
        b"": "holds no conversations",
    }.items():
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            read_conversations(path, None)
