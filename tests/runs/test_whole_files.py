"""Files that are there whole or not at all: kills, full disks, several writers."""

import os
import threading

import pytest

from runs.saved_folders import die_at, in_child
from turnwise.whole_files import remove_abandoned, write_whole


@pytest.mark.parametrize("before", [None, b"old"])
def test_killed_before_every_step(tmp_path, before):
    path = tmp_path / "run.json"
    found = set()
    for number in range(1, 50):
        if before is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(before)

        def write(report, number=number):
            die_at(number)
            write_whole(path, b"new content")

        _, killed = in_child(write).wait()
        content = path.read_bytes() if path.exists() else None
        assert content in (before, b"new content")
        found.add(content)
        if not killed:
            break
    assert not killed
    assert number > 2
    assert found == {before, b"new content"}
    remove_abandoned(tmp_path)
    assert os.listdir(tmp_path) == ["run.json"]


def test_many_writers_at_once(tmp_path):
    """Nobody removes what another still writes, and a reader always sees one whole content."""
    path = tmp_path / "run.json"
    contents = {letter.encode() * 100_000 for letter in "abcd"}
    failures = []

    def write(content):
        try:
            for _ in range(40):
                write_whole(path, content)
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            assert path.read_bytes() in contents
    assert failures == []
    assert os.listdir(tmp_path) == ["run.json"]
