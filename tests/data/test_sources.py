"""Rows from files, lists and other people's datasets, and what is said about bad ones."""

import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from turnwise import ConfigError, PromptDataset
from turnwise.trainer.warm_start import read_conversations

ROWS = [{"prompt": "6 x 7?", "answer": 42}, {"prompt": "Größe? 🍵", "answer": "L"}]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Table:
    """Rows by number, as Hugging Face's datasets and torch's give them."""

    def __init__(self, rows):
        self.rows = rows
        self.num_read = 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.num_read += 1
        return self.rows[index]


def test_json_lines(tmp_path):
    path = write_lines(tmp_path / "tasks.jsonl", ROWS)
    for source in (path, str(path)):
        assert list(PromptDataset(source)) == ROWS


def test_json_lines_as_editors_leave_them(tmp_path):
    path = tmp_path / "tasks.jsonl"
    separator = '"a\u2028b"'  # a line's end for some, inside of a text
    path.write_bytes(f'\ufeff{{"prompt": {separator}}}\r\n\r\n  \n"plain"'.encode())
    assert [row["prompt"] for row in PromptDataset(path)] == ["a\u2028b", "plain"]


def test_a_json_list(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(ROWS, indent=1))
    assert list(PromptDataset(path)) == ROWS


def test_several_files_follow_each_other(tmp_path):
    first = write_lines(tmp_path / "a.jsonl", ROWS)
    second = write_lines(tmp_path / "b.jsonl", ROWS[:1])
    assert list(PromptDataset([first, str(second)])) == [*ROWS, ROWS[0]]


def test_parquet(tmp_path):
    rows = [{"prompt": MESSAGES, "reward_model": {"ground_truth": "x"}, "n": n} for n in range(5)]
    path = tmp_path / "tasks.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    assert list(PromptDataset(path)) == rows
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        PromptDataset(path)


def test_lists_of_texts_and_of_dicts():
    dataset = PromptDataset(["Hello.", {"prompt": "Bye.", "n": 1}])
    assert list(dataset) == [{"prompt": "Hello."}, {"prompt": "Bye.", "n": 1}]
    assert dataset[-1] == dataset[1]
    assert [dataset[np.int64(0)]] == [dataset[0]]
    with pytest.raises(IndexError):
        dataset[2]


def test_another_column_can_be_the_prompt():
    dataset = PromptDataset([{"question": "Why?", "answer": 1}], prompt_key="question")
    assert dataset[0] == {"question": "Why?", "prompt": "Why?", "answer": 1}
    assert PromptDataset(["Why?"], prompt_key="question")[0]["prompt"] == "Why?"


def test_rows_of_others_are_read_when_they_are_asked_for():
    table = Table([{"prompt": f"{n}?"} for n in range(1000)])
    dataset = PromptDataset(table)
    assert len(dataset) == 1000
    assert dataset[999]["prompt"] == "999?"
    assert table.num_read == 2  # the first, to know the columns, and the one


def test_a_hugging_face_dataset(tmp_path):
    datasets = pytest.importorskip("datasets")
    split = datasets.Dataset.from_list([{"prompt": MESSAGES, "n": n} for n in range(3)])
    assert PromptDataset(split)[2] == {"prompt": MESSAGES, "n": 2}
    with pytest.raises(ConfigError, match=r"source\['train'\]"):
        PromptDataset(datasets.DatasetDict({"train": split}))
    with pytest.raises(ConfigError, match="list\\(source\\)"):
        PromptDataset(split.to_iterable_dataset())


def test_messages_in_an_array_as_pandas_has_them():
    row = {"prompt": np.array(MESSAGES, dtype=object)}
    assert PromptDataset(Table([row]))[0] == {"prompt": MESSAGES}


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("missing.jsonl", r"there is no file missing\.jsonl"),
        ("What is 6 x 7?", r"A single prompt goes into a list"),
        ("rows.csv", r"read_csv\(path\)\.to_dict\('records'\)"),
        (["fine", {"question": "y"}], "row 1 of the list has no 'prompt'"),
        ({"prompt": ["a", "b"]}, r"\(dict\), expected a file"),
        ((text for text in ["a"]), r"list\(source\)"),
        (7, r"7 \(int\), expected a file"),
        (Table([{"question": "y"}]), "row 0 of the Table has no 'prompt'"),
        (Table({"prompt": ["a"]}), r"row 0 of the Table .*table\.to_dict\('records'\)"),
    ],
)
def test_a_bad_source_is_told(source, told):
    with pytest.raises(ConfigError, match=told):
        PromptDataset(source)


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
