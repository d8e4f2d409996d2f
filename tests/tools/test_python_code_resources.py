"""Memory that the kernel keeps for a program, folders of the host that it is shown, and a host
process with many open files."""

import fcntl
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from tools.jailed import (
    contained,
    in_both_ways,
    needs_isolation,
    nothing_is_left as nothing_is_left,
    run,
    way_in as way_in,
)
from turnwise.tools.python_code import CodeRun, runner

pytestmark = [needs_isolation, in_both_ways]

WITHOUT_OVERLAYS = """
import sys; sys.path.insert(0, sys.argv[1])
import jail.namespaces
jail.namespaces._show_copy = lambda *arguments: False
"""


def test_socket_buffers_cannot_be_made_larger():
    result = run(
        """
        import socket
        ends = []
        try:
            while True:
                ends += socket.socketpair()
        except OSError:
            pass
        sent = 0
        for end in ends:
            end.setblocking(False)
            for option in (7, 32):  # SO_SNDBUF, SO_SNDBUFFORCE
                attempt("buffer", lambda: end.setsockopt(socket.SOL_SOCKET, option, 1 << 28))
            try:
                while True:
                    sent += end.send(bytes(1 << 16))
            except BlockingIOError:
                pass
        print(sent <= 2 * len(ends) * {wmem})
    """.replace("{wmem}", Path("/proc/sys/net/core/wmem_default").read_text().strip())
    )
    assert result.output == "True\n", result


def test_pipes_cannot_be_made_larger():
    contained("""
        import fcntl
        reader, writer = os.pipe()
        attempt("size", lambda: fcntl.fcntl(writer, 1031, 1 << 20))
        attempt("named pipe", lambda: os.mkfifo("pipe"))
    """)


def test_page_tables_count_as_memory():
    """One page in each GiB of addresses: 4 KiB of address space, 12 KiB of page tables."""
    result = run(
        """
        import time
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        size = os.sysconf("SC_PAGE_SIZE")
        for n in range(100_000):
            place = libc.mmap((1 << 40) + (n << 30), size, 3, 0x32, -1, 0)
            if place in (None, (1 << 64) - 1):
                break
            ctypes.c_char.from_address(place).value = b"x"
        time.sleep(50)
        print("ESCAPED:", n)
        """,
        memory_mb=64,
    )
    assert (result.exceeded, result.output) == ("memory", ""), result


def test_queued_signals_are_limited():
    contained("""
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [40])
        for _ in range(1000):
            libc.kill(os.getpid(), 40)
        taken = 0
        while signal.sigtimedwait([40], 0) is not None:
            taken += 1
        if taken > 100:
            print("ESCAPED:", taken)
    """)


def test_locks_succeed_and_take_nothing():
    """sqlite wants them; memory of the kernel for a million of them is nobody's."""
    contained("""
        import fcntl, sqlite3, struct
        with open("file", "wb") as file, open("file", "wb") as other:
            fcntl.flock(file, fcntl.LOCK_EX)
            fcntl.lockf(file, fcntl.LOCK_EX)
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        base = sqlite3.connect("base.db")
        base.execute("create table t (x)")
        base.executemany("insert into t values (?)", [(1,), (2,)])
        base.commit()
        again = sqlite3.connect("base.db").execute("select sum(x) from t").fetchone()
        if again != (3,):
            print("WRONG:", again)
    """)


@pytest.fixture
def folder(tmp_path):
    """A folder of packages with a named pipe, two sockets and a file that others lock."""
    for place in (tmp_path, tmp_path / "shown"):
        place.mkdir(exist_ok=True)
        place.chmod(0o755)
    shown = tmp_path / "shown"
    (shown / "helper.py").write_text("x = 5\n")
    os.mkfifo(shown / "pipe")
    (shown / "pipe").chmod(0o666)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams, _listening(shown):
        datagrams.bind(str(shown / "datagrams"))
        (shown / "datagrams").chmod(0o777)
        datagrams.setblocking(False)
        reader = os.open(shown / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(shown / "pipe", os.O_WRONLY | os.O_NONBLOCK)
        os.write(writer, b"for the host")
        yield shown
        assert os.read(reader, 100) == b"for the host", "the program took part"
        with pytest.raises(BlockingIOError):
            datagrams.recv(100)
        os.close(reader)
        os.close(writer)


def _listening(shown: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(shown / "stream"))
    server.listen()
    (shown / "stream").chmod(0o777)
    return server


HOSTILE = """
import fcntl, helper, socket
assert helper.x == 5
shown = os.path.dirname(helper.__file__)
for mode in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
    try:
        pipe = os.open(shown + "/pipe", mode | os.O_NONBLOCK)
    except OSError:
        continue
    for use in (lambda: os.read(pipe, 100), lambda: os.write(pipe, b"from the program")):
        try:
            use()
        except OSError:
            pass
end, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
attempt("datagram", lambda: end.sendto(b"x", shown + "/datagrams"))
attempt("connect", lambda: end.connect(shown + "/datagrams"))
attempt("sendmsg", lambda: end.sendmsg([b"x"], [], 0, shown + "/datagrams"))
attempt("stream", lambda: socket.socket(socket.AF_UNIX).connect(shown + "/stream"))
file = open(helper.__file__)
attempt("lease", lambda: fcntl.fcntl(file, 1024, fcntl.F_RDLCK))
attempt("notify", lambda: fcntl.fcntl(os.open(shown, os.O_RDONLY), 1026, 1))
attempt("owner", lambda: fcntl.fcntl(file, 8, os.getpid()))
"""


def test_pipes_and_sockets_in_a_folder_lead_nowhere(folder):
    result = run(HOSTILE + "\nprint('END')", packages=[str(folder)])
    if "is a named pipe or a socket" not in str(result.problem):  # a kernel without overlays
        assert (result.ok, result.output) == (True, "END\n"), result


def test_where_there_are_no_overlays_such_a_folder_is_refused(folder, monkeypatch):
    monkeypatch.setattr(runner, "_BOOT", WITHOUT_OVERLAYS + runner._BOOT)
    result = run(HOSTILE, packages=[str(folder)])
    assert result.output == ""
    assert "is a named pipe or a socket" in str(result.problem)
    for name in ("pipe", "datagrams", "stream"):
        (folder / name).rename(folder.parent / name)
    assert run("import helper; print(helper.x)", packages=[str(folder)]).output == "5\n"


@pytest.mark.parametrize("overlays", [True, False])
def test_a_file_of_the_host_cannot_be_locked(overlays, tmp_path, monkeypatch):
    if not overlays:
        monkeypatch.setattr(runner, "_BOOT", WITHOUT_OVERLAYS + runner._BOOT)
    tmp_path.chmod(0o755)
    (tmp_path / "helper.py").write_text("")
    code = """
        import fcntl, helper, time
        file = open(helper.__file__)
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_SH)
        time.sleep(60)
    """
    results: list[CodeRun] = []
    work = lambda: results.append(run(code, packages=[str(tmp_path)], seconds=0.3))  # noqa: E731
    thread = threading.Thread(target=work)
    thread.start()
    with open(tmp_path / "helper.py", "r+") as file:
        while thread.is_alive():
            for lock in (fcntl.flock, fcntl.lockf):
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if another holds it
                lock(file, fcntl.LOCK_UN)
            time.sleep(0.01)
    assert results[0].exceeded == "time", results


def test_a_folder_with_odd_characters_can_be_shown(tmp_path):
    odd = tmp_path / "a:b,c\\d e=é"
    odd.mkdir()
    for place in (tmp_path, odd):
        place.chmod(0o755)
    (odd / "helper.py").write_text("x = 5\n")
    assert run("import helper; print(helper.x)", packages=[str(odd)]).output == "5\n"
    nested = [str(odd), str(tmp_path)]  # in either order
    for packages in (nested, nested[::-1]):
        assert run("import helper; print(helper.x)", packages=packages).output == "5\n"
