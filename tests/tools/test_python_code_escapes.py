"""Programs that try to get out of the separate process, or to take the machine with them.

Each runs twice: as root runs it, who makes namespaces by right, and as everybody else does, in a
user namespace. (Without root both are the second.) After each, nothing may be left.
"""

import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools.jailed import (
    WITHOUT_RIGHTS,
    contained,
    in_both_ways,
    needs_isolation,
    nothing_is_left as nothing_is_left,
    program,
    run,
    separate_processes,
    wait_until,
    way_in as way_in,
)
from turnwise.tools.python_code import CodeLimits, CodeRun, run_code, runner

pytestmark = [needs_isolation, in_both_ways]

SECRET = "the-secret-of-this-test"


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret.txt"
    path.write_text(SECRET)
    return path


def test_the_same_attempts_work_where_nothing_is_isolated(secret):
    """Else these tests could not fail."""
    code = f"""
        import socket, subprocess
        attempt("read", lambda: open({str(secret)!r}).read())
        attempt("stat", lambda: os.stat({str(secret)!r}))
        attempt("write", lambda: open({str(secret.parent / "written")!r}, "w"))
        attempt("environ", lambda: open("/proc/{os.getpid()}/environ").read())
        attempt("socket", lambda: socket.socket())
        attempt("subprocess", lambda: subprocess.run([sys.executable, "-c", "pass"]))
        attempt("memfd", lambda: os.memfd_create("x"))
        attempt("signal", lambda: os.kill({os.getpid()}, 0))
        check("prctl", libc.prctl(36, 1, 0, 0, 0))
        if os.getppid() != 0:
            print("ESCAPED: a parent")
    """
    result = run_code(program(code), CodeLimits(seconds=60.0), isolated=False)
    names = [line.split()[1] for line in result.output.splitlines()]
    assert names == [
        "read",
        "stat",
        "write",
        "environ",
        "socket",
        "subprocess",
        "memfd",
        "signal",
        "prctl",
        "a",
    ]


def test_files_of_the_machine_are_not_there(secret):
    home = Path.home()
    contained(f"""
        secret = {str(secret)!r}
        for path in ("/etc/passwd", "/etc/shadow", "/etc/hostname", {str(home)!r} + "/.bashrc",
                     {str(Path(__file__))!r}, secret, "../" * 20 + secret, "/dev/mem", "/dev/kmsg",
                     "/proc/self/root" + secret, "/sys/kernel/notes", "/var/log/syslog"):
            attempt(path, lambda: open(path).read())
            attempt("stat " + path, lambda: os.stat(path))
        for folder in ({str(secret.parent)!r}, {str(home)!r} + "/.ssh", "/home", "/proc", "/sys"):
            attempt("list " + folder, lambda: os.listdir(folder))
        root = os.open("/", os.O_PATH)
        attempt("openat", lambda: os.open(secret, os.O_RDONLY, dir_fd=root))
        attempt("chroot", lambda: os.chroot("/sandbox"))
        os.chdir("/")
        os.chdir("../../..")
        attempt("above the root", lambda: open(secret.lstrip("/")))
    """)


def test_the_environment_and_memory_of_others_is_not_there(monkeypatch, way_in):
    monkeypatch.setenv("API_TOKEN", SECRET)
    contained(f"""
        if {SECRET!r} in repr(os.environ):
            print("ESCAPED: environment")
        names = set(os.environ) - {{"HOME", "TMPDIR", "LANG", "PYTHONHASHSEED", "OMP_NUM_THREADS",
                                   "OPENBLAS_NUM_THREADS", "LC_CTYPE"}}
        if names:
            print("ESCAPED:", names)
        for pid in ("self", 1, 2, os.getppid(), {os.getpid()}):
            attempt(f"environ of {{pid}}", lambda: open(f"/proc/{{pid}}/environ").read())
            attempt(f"memory of {{pid}}", lambda: open(f"/proc/{{pid}}/mem", "rb").read(1))
        if {way_in == "root" and os.getuid() == 0} and os.getuid() == 0:
            print("ESCAPED: still root")
        if os.uname().nodename == {os.uname().nodename!r}:
            print("ESCAPED: host name")
        attempt("setuid", lambda: os.setuid(0))
        attempt("setgroups", lambda: os.setgroups([0]))
    """)


def test_there_is_no_network(tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        abstract.bind(f"\0turnwise-{os.getpid()}")
        abstract.listen()
        contained(f"""
            import socket
            address = ("127.0.0.1", {tcp.getsockname()[1]})
            attempt("tcp", lambda: socket.create_connection(address, 2))
            attempt("udp", lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", address))
            attempt("dns", lambda: socket.getaddrinfo("example.com", 80))
            def unix(path):
                socket.socket(socket.AF_UNIX).connect(path)
            attempt("unix", lambda: unix({str(tmp_path / "socket")!r}))
            attempt("abstract", lambda: unix("\\0turnwise-{os.getpid()}"))
            for family in range(1, 46):
                check(f"family {{family}}", libc.socket(family, socket.SOCK_STREAM, 0))
                check(f"family {{family}}", libc.socket(family, socket.SOCK_DGRAM, 0))
                check(f"family {{family}}", libc.socket(family, socket.SOCK_RAW, 0))
            pair, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            attempt("pair", lambda: pair.connect({str(tmp_path / "socket")!r}))
            attempt("pair", lambda: pair.sendto(b"x", "\\0turnwise-{os.getpid()}"))
            attempt("listen", lambda: socket.create_server(("127.0.0.1", 0)))
        """)
        for server in (tcp, unix, abstract):
            server.settimeout(0.01)
            with pytest.raises(TimeoutError):
                server.accept()


def test_no_process_can_be_started():
    contained("""
        import multiprocessing, subprocess
        attempt("fork", os.fork)
        attempt("forkpty", os.forkpty)
        attempt("spawn", lambda: os.posix_spawn(sys.executable, [sys.executable], {}))
        attempt("exec", lambda: os.execv("/bin/sh", ["sh"]))
        attempt("subprocess", lambda: subprocess.run([sys.executable, "-c", "pass"]))
        if os.system("true") == 0:
            print("ESCAPED: system")
        attempt("pool", lambda: multiprocessing.get_context("fork").Process(target=print).start())
        check("fork", libc.fork())
        check("vfork", libc.vfork())
        check("daemon", libc.daemon(0, 0))
    """)


def test_threads_are_limited():
    result = run(
        """
        import threading, time
        threading.stack_size(256 << 10)
        started = 0
        release = threading.Event()
        try:
            while True:
                threading.Thread(target=release.wait).start()
                started += 1
                time.sleep(0.001)
        except RuntimeError:
            print(started)
        release.set()
        """,
        memory_mb=1024,
        num_threads=16,
    )
    # The kernel does not limit the threads of root's own user; then the one that watches does.
    if os.getuid() == 0 and WITHOUT_RIGHTS in runner._BOOT:
        assert result.exceeded == "threads", result
    else:
        assert 0 < int(result.output) <= 15


@pytest.mark.parametrize(
    "allocate",
    [
        "bytearray(10 << 30)",
        "[bytearray(1 << 20) for _ in range(10_000)]",
        "mmap.mmap(-1, 10 << 30)",
        "[mmap.mmap(-1, 1 << 26) for _ in range(200)]",
        "' ' * (10 << 30)",
        "list(range(1 << 32))",
    ],
)
def test_ten_gigabytes_are_refused(allocate):
    result = run(f"import mmap\nx = {allocate}\nprint('ESCAPED')")
    assert "ESCAPED" not in result.output
    assert not result.ok
    assert "MemoryError" in result.output or "Cannot allocate memory" in result.output


def test_memory_cannot_be_had_by_the_back_door():
    contained("""
        attempt("memfd", lambda: os.memfd_create("x"))
        check("shmget", libc.shmget(0, 1 << 26, 0o1600))
        check("shm_open", libc.shm_open(b"/x", os.O_CREAT | os.O_RDWR, 0o600))
        check("msgget", libc.msgget(0, 0o1600))
        attempt("limit", lambda: __import__("resource").setrlimit(9, (-1, -1)))
    """)


@pytest.mark.parametrize(
    ("code", "refused", "most"),
    [
        ("open(f'file{made}', 'wb').write(bytes(1 << 18))", "ENOSPC", 16),
        ("open('big', 'ab').write(bytes(1 << 20))", "ENOSPC", 4),
        ("os.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 1 << 40)", "EFBIG", 0),
        ("os.mkdir(f'folder{made}')", "ENOSPC", 50),
        ("files.append(open('/dev/null'))", "EMFILE", 32),
    ],
)
def test_files_are_limited_in_number_and_size(code, refused, most):
    result = run(
        f"""
        import errno, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        made, files = 0, []
        try:
            while True:
                {code}
                made += 1
        except OSError as error:
            print(errno.errorcode[error.errno], made)
        """,
        open_files=32,
    )
    name, made = result.output.split()
    assert name in (refused, "EFBIG")
    assert int(made) <= most


def test_endless_output_is_stopped():
    result = run("while True: sys.stdout.write('x' * 65536)")
    assert result.exceeded == "output"
    assert len(result.output) < 10_000


ENDLESS = [
    "while True: pass",
    "import time\nwhile True: time.sleep(1000)",
    "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\nwhile True: pass",
    "libc.prctl(1, 0)\nwhile True: pass",
    "os.close(0); os.close(1); os.close(2)\nwhile True: pass",
    "10 ** 10 ** 8 % 7",
    "__import__('re').match('(a+)+$', 'a' * 60 + 'b')",
    "import atexit, time\natexit.register(time.sleep, 1000)",
    "class Stay:\n    def __del__(self):\n        while True: pass\nstay = Stay()",
    "import threading\nthreading.Lock().acquire(); lock = threading.Lock(); lock.acquire(); "
    "lock.acquire()",
    "os.read(os.pipe()[0], 1)",
    "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()",
]


def test_time_ends_everything():
    with ThreadPoolExecutor(4) as pool:
        ran = list(pool.map(lambda code: run(code, seconds=0.5), ENDLESS))
    assert not [code for code, run in zip(ENDLESS, ran, strict=True) if run.exceeded != "time"]


def test_nobody_outside_can_be_killed():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        contained(f"""
            if os.getppid() != 0:
                print("ESCAPED: a parent")
            for target in ({os.getpid()}, {os.getppid()}, {bystander.pid}, -{os.getpgrp()}):
                for number in (9, 15, 19):
                    attempt(f"kill {{target}}", lambda: os.kill(target, number))
                check("tgkill", libc.tgkill(target, target, 9))
                check("pidfd", libc.syscall(434, target, 0))  # pidfd_open, on every processor
            attempt("killpg", lambda: os.killpg({os.getpgrp()}, 9))
            os.kill(0, 19)  # its own group, in which nobody else is
        """)
        assert bystander.poll() is None
        bystander.terminate()


def test_killing_all_it_can_see_ends_only_itself():
    run("import signal\nos.kill(0, signal.SIGKILL)\nos.kill(os.getpid(), signal.SIGKILL)")
    result = run("print('before', flush=True)\nos.kill(-1, 9)\nprint('after')")
    assert result.output.startswith("before\n")


def test_links_lead_nowhere(secret):
    target = str(secret)
    contained(f"""
        os.symlink({target!r}, "link")
        attempt("read", lambda: open("link").read())
        attempt("write", lambda: open("link", "w"))
        os.symlink("/" , "root")
        attempt("through the root", lambda: open("root" + {target!r}))
        os.symlink({str(secret.parent)!r}, "folder")
        attempt("list", lambda: os.listdir("folder"))
        attempt("hard", lambda: os.link({target!r}, "hard"))
        attempt("hard", lambda: os.link(os.__file__, "os.py"))
        os.symlink("/proc/self/fd/0", "descriptor")
        attempt("descriptor", lambda: open("descriptor"))
    """)
    assert secret.read_text() == SECRET


def test_nothing_outside_can_be_written_or_changed(secret):
    library = Path(os.__file__)
    before = (library.read_bytes(), library.stat())
    contained(f"""
        for path in ("/written", "/etc/written", "/usr/lib/written", "/dev/written",
                     {str(secret)!r}, {str(secret.parent / "written")!r}, os.__file__,
                     os.path.dirname(os.__file__) + "/written.py", "/old", "/tmp/../written"):
            attempt("write " + path, lambda: open(path, "w"))
            attempt("mkdir " + path, lambda: os.mkdir(path))
            attempt("unlink " + path, lambda: os.unlink(path))
            attempt("chmod " + path, lambda: os.chmod(path, 0o777))
            attempt("chown " + path, lambda: os.chown(path, os.getuid(), os.getgid()))
            attempt("utime " + path, lambda: os.utime(path))
            attempt("truncate " + path, lambda: os.truncate(path, 0))
            attempt("rename " + path, lambda: os.rename(path, "/sandbox/taken"))
        attempt("device", lambda: os.mknod("device", 0o600 | 0o020000, os.makedev(1, 1)))
        attempt("setuid bit", lambda: 1 / 0 if os.stat("/").st_mode & 0o4000 else os.mkdir("/x"))
    """)
    assert (library.read_bytes(), library.stat()) == before
    assert secret.read_text() == SECRET
    assert not Path("/written").exists()


def test_devices_of_the_machine_stay_as_they_are():
    """The user of a user namespace may own them: root does, in many containers."""
    paths = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
    before = [(os.stat(path).st_mode, os.stat(path).st_mtime) for path in paths]
    contained(f"""
        for path in {paths!r}:
            attempt("chmod " + path, lambda: os.chmod(path, os.stat(path).st_mode))
            attempt("utime " + path, lambda: os.utime(path))
            device = os.open(path, os.O_RDWR)
            attempt("fchmod " + path, lambda: os.fchmod(device, os.stat(path).st_mode))
            attempt("futime " + path, lambda: os.utime(device))
        open("/dev/null", "w").write("x")
        attempt("fchmod of the input", lambda: os.fchmod(0, os.fstat(0).st_mode))
        attempt("utime of the input", lambda: os.utime(0))
    """)
    assert [(os.stat(path).st_mode, os.stat(path).st_mtime) for path in paths] == before


def test_our_open_files_are_not_inherited(secret):
    with open(secret) as file:
        os.set_inheritable(file.fileno(), True)
        contained("""
            for number in range(3, 64):
                attempt(f"descriptor {number}", lambda: os.fstat(number))
            if os.read(0, 100):
                print("ESCAPED: stdin")
        """)


def test_the_kernel_gives_no_way_around():
    contained(f"""
        check("unshare", libc.unshare(0x10000000))
        check("setns", libc.setns(0, 0))
        check("mount", libc.mount(b"none", b"/sandbox", b"tmpfs", 0, None))
        check("umount", libc.umount2(b"/sandbox", 2))
        check("ptrace", libc.ptrace(16, {os.getpid()}, 0, 0))
        check("process_vm_readv", libc.process_vm_readv({os.getpid()}, None, 0, None, 0, 0))
        check("prctl pdeathsig", libc.prctl(1, 0, 0, 0, 0))
        check("prctl dumpable", libc.prctl(4, 1, 0, 0, 0))
        check("prctl seccomp", libc.prctl(22, 0, 0, 0, 0))
        check("prctl subreaper", libc.prctl(36, 1, 0, 0, 0))
        check("personality", libc.personality(0))
        check("sethostname", libc.sethostname(b"x", 1))
        check("reboot", libc.reboot(0))
        check("setpriority", libc.setpriority(0, 0, 5))
        status = ctypes.create_string_buffer(24)
        libc.capget(ctypes.create_string_buffer(b"\\x22\\x05\\x08\\x20" + bytes(4), 8), status)
        if any(status.raw):
            print("ESCAPED: rights", status.raw)
    """)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86_64")
@pytest.mark.parametrize(
    "instructions",
    [
        b"\xb8\x14\x00\x00\x00\xcd\x80\xc3",  # mov eax, 20; int 0x80; ret: a 32-bit call
        b"\xb8\x27\x00\x00\x40\x0f\x05\xc3",  # mov eax, 39 | x32; syscall; ret
    ],
    ids=["32-bit", "x32"],
)
def test_calls_of_other_kinds_of_programs_end_it(instructions):
    result = run(f"""
        import mmap
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write({instructions!r})
        ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
        print("ESCAPED")
    """)
    assert result.output == ""
    assert result.exit_code in (-signal.SIGSYS, -signal.SIGSEGV)  # no 32-bit calls at all on some


def test_if_we_are_killed_the_program_goes_too():
    script = (
        "from turnwise.tools.python_code import CodeLimits, run_code\n"
        "run_code('print(1, flush=True)\\nwhile True: pass', CodeLimits(seconds=3600))"
    )
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as owner:
        wait_until(lambda: len(separate_processes(owner.pid)) == 2)
        owner.kill()
    wait_until(lambda: not separate_processes(owner.pid))


@pytest.mark.parametrize("early", [True, False])
def test_if_the_one_that_watches_is_killed_the_program_goes_too(early):
    results: list[CodeRun] = []
    code = "print('begun', flush=True)\nwhile True: pass"
    thread = threading.Thread(target=lambda: results.append(run(code, seconds=3600)), daemon=True)
    thread.start()
    # Early: while the program is still being locked in.
    wait_until(lambda: len(separate_processes()) == 2)
    time.sleep(0.0 if early else 1.0)
    os.kill(min(separate_processes()), signal.SIGKILL)
    thread.join(60)
    assert results[0].exit_code == -signal.SIGKILL or (early and results[0].problem)
