"""Ray's temporary folders: those of drivers that are gone are removed, and nothing else is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from turnwise.scale.ray import session_folder
from turnwise.scale.ray.session_folder import SessionFolder, remove_stale_folders

DRIVER = """
import sys
from pathlib import Path
from turnwise.scale.ray.session_folder import SessionFolder
folder = SessionFolder(Path(sys.argv[1]))
(folder.path / "session" / "logs").mkdir(parents=True)
(folder.path / "session" / "logs" / "raylet.out").write_text("log")
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_the_folder_of_a_killed_driver_is_removed_at_the_next_start(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        theirs = Path(driver.stdout.readline().strip())
        assert remove_stale_folders(tmp_path) == []
        assert (theirs / "session/logs/raylet.out").read_text() == "log"
        driver.send_signal(signal.SIGKILL)
    assert theirs.is_dir()
    ours = SessionFolder(tmp_path)
    assert list(tmp_path.iterdir()) == [ours.path]
    ours.remove()
    ours.remove()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_removed_that_is_not_recognisably_ours(tmp_path: Path, monkeypatch) -> None:
    for name in ("turnwise-ray-old", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "turnwise.lock").touch()  # without the prefix
    (tmp_path / "turnwise-ray-file").touch()
    (tmp_path / "turnwise-ray-link").symlink_to(tmp_path / "other")
    (tmp_path / "turnwise-ray-odd").mkdir()
    (tmp_path / "turnwise-ray-odd" / "turnwise.lock").symlink_to(tmp_path / "other/turnwise.lock")
    (tmp_path / "turnwise-ray-pipe").mkdir()
    os.mkfifo(tmp_path / "turnwise-ray-pipe" / "turnwise.lock")
    before = sorted(tmp_path.rglob("*"))
    assert remove_stale_folders(tmp_path) == []

    stale = tmp_path / "turnwise-ray-stale"
    stale.mkdir()
    (stale / "turnwise.lock").touch()
    (stale / "link").symlink_to(tmp_path / "other")  # what it points to stays
    another_user = os.getuid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(session_folder.os, "getuid", lambda: another_user)
        assert remove_stale_folders(tmp_path) == []
    assert remove_stale_folders(tmp_path) == [stale]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_forked_process_does_not_remove_its_parents_folder(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    child = os.fork()
    if child == 0:
        folder.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.path.is_dir()
    folder.remove()
    assert not folder.path.exists()
