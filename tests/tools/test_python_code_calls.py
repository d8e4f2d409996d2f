"""The filter of system calls: by the number of each processor, shown to do what its table says."""

import ctypes
import ctypes.util
import functools
import platform
import struct

import pytest

from tools.jailed import (
    contained,
    in_both_ways,
    needs_isolation,
    nothing_is_left as nothing_is_left,
    way_in as way_in,
)
from turnwise.tools.python_code import runner, why_not_isolated
from turnwise.tools.python_code.jail import seccomp

# Calls with which a program could get out, or have memory beside its own: name, number on x86_64,
# number on aarch64. They are not in the table of the filter, so each is refused.
FORBIDDEN = """
fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, ptrace 101 117, process_vm_readv 310 270,
process_vm_writev 311 271, pidfd_open 434 434, pidfd_getfd 438 438, pidfd_send_signal 424 424,
kcmp 312 272, unshare 272 97, setns 308 268, mount 165 40, umount2 166 39, pivot_root 155 41,
chroot 161 51, move_mount 429 429, open_tree 428 428, fsopen 430 430, fsmount 432 432,
mount_setattr 442 442, open_by_handle_at 304 265, name_to_handle_at 303 264, mknod 133 -,
mknodat 259 33, chown 92 -, fchown 93 55, fchownat 260 54, setxattr 188 5, quotactl 179 60,
socket 41 198, connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242,
sendmsg 46 211, recvmsg 47 212, sendmmsg 307 269, recvmmsg 299 243, setsockopt 54 208,
setuid 105 146, setgid 106 144, setresuid 117 147, setresgid 119 149, setgroups 116 159,
capset 126 91, personality 135 92, seccomp 317 277, bpf 321 280, perf_event_open 298 241,
userfaultfd 323 282, landlock_create_ruleset 444 444, add_key 248 217, request_key 249 218,
keyctl 250 219, memfd_create 319 279, memfd_secret 447 447, shmget 29 194, shmat 30 196,
msgget 68 186, msgsnd 69 189, semget 64 190, mq_open 240 180, timer_create 222 107,
timerfd_create 283 85, inotify_init1 294 26, fanotify_init 300 262, signalfd4 289 74,
io_setup 206 0, io_uring_setup 425 425, io_uring_register 427 427, splice 275 76, tee 276 77,
vmsplice 278 75, mlock 149 228, mlockall 151 230, mbind 237 235, set_mempolicy 238 237,
rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, setrlimit 160 164, setpriority 141 140,
sched_setaffinity 203 122, sched_setscheduler 144 119, ioprio_set 251 30, sethostname 170 161,
settimeofday 164 170, clock_settime 227 112, adjtimex 159 171, reboot 169 142, syslog 103 116,
kexec_load 246 104, init_module 175 105, finit_module 313 273, delete_module 176 106,
swapon 167 224, acct 163 89, vhangup 153 58, iopl 172 -, ioperm 173 -, modify_ldt 154 -,
process_madvise 440 440, lookup_dcookie 212 18, nfsservctl 180 42, setsid 112 157, setpgid 109 154
"""
ARM_32, I386, RISCV_64 = 0x40000028, 0x40000003, 0xC00000F3
MACHINES = seccomp.ARCHITECTURES


def known(table: str) -> dict[str, dict[str, int]]:
    return {machine: seccomp.call_numbers(table, machine) for machine in MACHINES}


@functools.cache
def instructions(machine: str) -> list[tuple[int, int, int, int]]:
    return list(struct.iter_unpack("=HBBI", seccomp.build_filter(machine)))


def answer(machine: str, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the kernel would do: run the BPF program on a call."""
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number, architecture, 0, *values)
    program = instructions(machine)
    word = at = 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == seccomp._LOAD_WORD:
            (word,) = struct.unpack_from("<I", data, value)
        elif code == seccomp._RETURN:
            return value
        else:
            tests = {
                seccomp._JUMP_IF_EQUAL: word == value,
                seccomp._JUMP_IF_ABOVE: word > value,
                seccomp._JUMP_IF_ANY_BIT: bool(word & value),
            }
            at += if_true if tests[code] else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_answers_as_the_table_says(machine):
    own = seccomp.AUDIT_ARCH[machine]
    allowed = set(known(seccomp.ALLOWED)[machine].values())
    conditional = set(known(seccomp.CONDITIONAL)[machine].values())
    assert not allowed & conditional
    for number in range(600):
        found = answer(machine, own, number)
        if number in allowed:
            assert found == seccomp.ALLOW, number
        elif number not in conditional:
            no_such_call = number == seccomp.CLONE3 or number > seccomp.LAST_KNOWN
            assert found == seccomp.ERRNO | (38 if no_such_call else 1), number
    for name, number in known(FORBIDDEN)[machine].items():
        assert answer(machine, own, number, (1, 1, 1, 1, 1, 1)) == seccomp.REFUSE, name


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_architecture_end_the_program(machine):
    others = {ARM_32, I386, RISCV_64, *seccomp.AUDIT_ARCH.values()} - {seccomp.AUDIT_ARCH[machine]}
    for other in others:
        for number in range(600):
            assert answer(machine, other, number) == seccomp.KILL
    for number in range(600):  # the x32 ABI has the same architecture and a bit in its numbers
        assert answer(machine, seccomp.AUDIT_ARCH[machine], 0x40000000 | number) == seccomp.KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide_where_the_table_says_so(machine):
    thread, process = 0x003D0F00, 0x01200011  # as libc starts a thread, and forks
    expected = {
        "clone": {(thread,): "allow", (process,): "refuse", (thread | 1 << 28,): "refuse"},
        "prctl": {(15, 0): "allow", (1, 0): "refuse", (4, 1): "refuse", (38, 1): "refuse"},
        "socketpair": {(1, 1): "allow", (2, 1): "refuse", (16, 3): "refuse"},
        "sendto": {
            (3, 4096, 1, 0, 0, 0): "allow",
            (3, 4096, 1, 0, 4096, 16): "refuse",
            (3, 4096, 1, 0, 1 << 40, 16): "refuse",  # a pointer whose low half is 0
            (3, 4096, 1, 0, 0, 16): "refuse",
        },
        "fcntl": {
            (3, 1): "allow",  # F_GETFD
            (3, 1030): "allow",  # F_DUPFD_CLOEXEC
            (3, 6): "pretend",  # F_SETLK
            (3, 38): "pretend",  # F_OFD_SETLKW
            (3, 1024): "refuse",  # F_SETLEASE
            (3, 1026): "refuse",  # F_NOTIFY
            (3, 1031): "refuse",  # F_SETPIPE_SZ
            (3, 8): "refuse",  # F_SETOWN
        },
        "flock": {(3, 2): "pretend"},
        "ioctl": {(1, 0x5401): "allow", (1, 0x5412): "refuse", (1, 0x40086602): "refuse"},
    }
    assert expected.keys() == known(seccomp.CONDITIONAL)[machine].keys()
    means = {"allow": seccomp.ALLOW, "refuse": seccomp.REFUSE, "pretend": seccomp.ERRNO}
    for name, cases in expected.items():
        number = known(seccomp.CONDITIONAL)[machine][name]
        for arguments, meaning in cases.items():
            found = answer(machine, seccomp.AUDIT_ARCH[machine], number, arguments)
            assert found == means[meaning], (name, arguments)


@needs_isolation
@in_both_ways
def test_every_call_that_is_not_in_the_table_is_refused_by_the_kernel():
    machine = platform.machine()
    possible = {
        *known(seccomp.ALLOWED)[machine].values(),
        *known(seccomp.CONDITIONAL)[machine].values(),
    }
    if machine == "x86_64":
        # uretprobe and uprobe: newer kernels let them past any filter, and end whoever calls them.
        possible |= {335, 336}
    forbidden = known(FORBIDDEN)[machine]
    assert not possible & set(forbidden.values())
    names = {number: name for name, number in forbidden.items()}
    contained(f"""
        import errno
        names = {names!r}
        for number in [*range(1100), *names]:
            if number in {possible!r}:
                continue
            result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
            if result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
                print("ESCAPED:", names.get(number, number), result, ctypes.get_errno())
    """)


@pytest.mark.parametrize("table", [seccomp.ALLOWED, seccomp.CONDITIONAL, FORBIDDEN])
def test_the_tables_agree_with_libseccomp(table):
    libseccomp = _of_libseccomp(table)
    if libseccomp is None:
        pytest.skip("libseccomp is not installed")
    assert libseccomp == known(table)


def _of_libseccomp(table: str) -> dict[str, dict[str, int]] | None:
    """The library knows the numbers of all processors on each."""
    path = ctypes.util.find_library("seccomp")
    if path is None:
        return None
    resolve = ctypes.CDLL(path).seccomp_syscall_resolve_name_arch
    resolve.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    names = {entry.split()[0] for entry in table.split(",")}
    found = {
        machine: {name: resolve(seccomp.AUDIT_ARCH[machine], name.encode()) for name in names}
        for machine in MACHINES
    }
    return {m: {k: v for k, v in numbers.items() if v >= 0} for m, numbers in found.items()}


@needs_isolation
@in_both_ways
def test_on_a_processor_without_a_table_nothing_runs(monkeypatch):
    pretends = (
        "import os; _is = os.uname(); "
        "os.uname = lambda: os.uname_result((*tuple(_is)[:4], 'riscv64'))\n"
    )
    monkeypatch.setattr(runner, "_BOOT", pretends + runner._BOOT)
    result = runner.run_code("print('ESCAPED')")
    assert result.output == ""
    assert "riscv64 is not among the processors x86_64, aarch64" in str(result.problem)
    assert "riscv64" in str(why_not_isolated.__wrapped__())
