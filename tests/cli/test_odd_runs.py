"""Commands that read run folders in which anything is: a message, never a traceback."""

import os
import shutil

import pytest

from turnwise import ConfigStore

METRICS = [
    *(b"", b"\xff", b"[]\n", b"[" * 5000, b"null\n", b"{}\n", b"\n\n", b'{"step": 1}\r\n'),
    *(b'{"step": "x"}\n', b'{"reward": [1], "step": 1}\n', b'{"reward": null}\n'),
    *(b'{"reward": "x", "step": 1}\n', b'{"reward": 1, "success": "high", "step": 1}\n'),
    *(b'{"eval/greedy/success": "x", "reward": 1}\n', b'{"num_episodes": "x", "reward": 1}\n'),
    *(b'{"reward": NaN, "step": 1}\n', b'{"reward": 1e999}\n', b'{"\\ud800": 1, "reward": 1}\n'),
    b'{"step": 1, "reward": 1}\n{"step": 2, "reward": "x"}\n',
]
OTHERS = [b"", b"\xff", b"[]", b"[" * 5000, b'{"environment": 3}', b"a: &a [*a]", b"training: 3"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"

    def make(name, content):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "checkpoints").mkdir(parents=True)
        ConfigStore().save(folder / "config.yaml")
        (folder / "run.json").write_text('{"status": "running", "environment": "guess-number"}')
        (folder / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
        path = folder / name
        if callable(content):
            path.unlink()
            content(path)
        else:
            path.write_bytes(content)

    return make


def assert_no_traceback(turnwise, *words):
    ran = turnwise(*words)  # what is raised would be raised here
    assert ran.code in (0, 2), (words, ran)
    assert "Traceback" not in ran.err + ran.out


def test_metrics(turnwise, run):
    for content in METRICS:
        run("metrics.jsonl", content)
        assert_no_traceback(turnwise, "doctor", "run")
        assert_no_traceback(turnwise, "doctor", "run", "--json")
    for content in METRICS[-5:]:  # most of the others are refused before they are drawn
        run("metrics.jsonl", content)
        assert_no_traceback(turnwise, "plot", "run", "-o", "x.svg", "--x", "episodes")
    assert_no_traceback(turnwise, "plot", "run", "-o", "x.svg", "--json")


COMMANDS = [
    *(("doctor", "run"), ("train", "run", "--dry-run"), ("eval", "run"), ("export", "run", "out")),
    ("config", "run/config.yaml"),
]


@pytest.mark.parametrize("name", ["run.json", "config.yaml"])
def test_status_and_settings(turnwise, run, name):
    for content in OTHERS:
        run(name, content)
        for words in COMMANDS:
            assert_no_traceback(turnwise, *words)
    run("run.json", b"[]")
    assert "expected a JSON object" in turnwise("plot", "run", "-o", "x.svg").err


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "metrics.jsonl"])
def test_what_is_no_file(turnwise, run, name):
    for make in (os.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name)):
        run(name, make)
        for words in COMMANDS:
            assert_no_traceback(turnwise, *words)
