"""Files that anybody may have written: read within limits, or refused with the reason."""

import io
import json
import os
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from turnwise.bounded_files import (
    MAX_DEPTH,
    parse_array,
    parse_json,
    read_archive,
    read_bytes,
    read_json_object,
)
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


def bomb(path, size=2**31, method=zipfile.ZIP_DEFLATED):
    """A small file that unpacks to zeros of that size."""
    with zipfile.ZipFile(path, "w", method) as archive, archive.open("ids.npy", "w") as member:
        for _ in range(size // 2**24):
            member.write(bytes(2**24))
    return path


def test_a_zip_bomb_takes_no_memory(tmp_path):
    path = bomb(tmp_path / "bomb.npz", 2**26)
    assert path.stat().st_size < 2**17
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=r"1 members of 67,108,864 bytes, expected at most"):
            read_archive(path, lambda name: True, 2**20)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    assert read_archive(path, lambda name: False, 2**20) == {}


def test_a_member_that_declares_less_than_it_has(tmp_path):
    """The size in the directory is what is read, whatever the stream would give."""
    path = bomb(tmp_path / "lies.npz", 2**24)
    data = path.read_bytes().replace((2**24).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="no whole zip file: Bad CRC"):
        read_archive(path, lambda name: True, 2**20)


def test_methods_that_cannot_be_bounded(tmp_path):
    path = bomb(tmp_path / "lzma.npz", 2**24, zipfile.ZIP_LZMA)
    with pytest.raises(ConfigError, match="compressed by method 14, expected deflate"):
        read_archive(path, lambda name: True, 2**30)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_any_bytes_are_an_archive_or_an_error(tmp_path_factory, junk, place, change):
    folder = tmp_path_factory.mktemp("any")
    good = io.BytesIO()
    np.savez_compressed(good, ids=np.arange(9))
    data = good.getvalue()
    damaged = data[:place] + change + data[place + len(change) :]
    for content in (junk, damaged, data[:place]):
        (folder / "a.npz").write_bytes(content)
        try:
            members = read_archive(folder / "a.npz", lambda name: True, 10_000)
            for name, member in members.items():
                parse_array(member, name)
        except ConfigError:
            pass


def array_bytes(array, **header):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["u1", "<i8", "f2", "<f4", "?", ">i4"])
def test_arrays_come_back(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found = parse_array(array_bytes(array), "x")
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        array_bytes(np.arange(3)).replace(b"(3,)", b"(9,)"),
        array_bytes(np.arange(3)).replace(b"(3,), }", b"(10**12,), }"),
        array_bytes(np.array([{}], dtype=object)),
        array_bytes(np.array(["text"])),
        array_bytes(np.zeros(2, [("a", "i4")])),
        b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16,
    ],
    ids=range(8),
)
def test_what_is_no_array_of_numbers(data):
    with pytest.raises(ConfigError, match="x is no array of numbers"):
        parse_array(data, "x")
