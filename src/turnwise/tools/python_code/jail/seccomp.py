"""The filter of system calls, as a BPF program: allowed are those for computing, files and threads.

All others are refused: starting processes and programs, sockets, other processes' memory, mounts,
namespaces, kernel memory outside of the address space (memfd, shared memory, message queues,
timers, inotify, io_uring, larger socket and pipe buffers), and all calls of newer kernels.

Most calls are allowed or refused by their number alone. A few depend on an argument:

- `clone` may only start threads, and `prctl` only set names. (With other options of `prctl` a
  program could survive the process that watches it.)
- `socketpair` is for asyncio's own pair, and `sendto` sends only to the other end of a pair, never
  to an address: sockets in a mounted folder reach the host.
- `fcntl` and `ioctl` take the commands that Python's own modules use, without leases, pipe sizes
  and signals on input.
- Locks succeed without being taken. The program is alone, and a lock on a file of the host would
  block others.
"""

from __future__ import annotations

import struct

ARCHITECTURES = ("x86_64", "aarch64")

# name, number on x86_64, number on aarch64; "-" if it does not exist there
ALLOWED = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69,
pwritev 296 70, preadv2 327 286, pwritev2 328 287, open 2 -, openat 257 56, close 3 57,
close_range 436 436, lseek 8 62, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291,
access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, getcwd 79 17,
chdir 80 49, fchdir 81 50, rename 82 -, renameat 264 38, renameat2 316 276, mkdir 83 -,
mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35, symlink 88 -, symlinkat 266 36, link 86 -,
linkat 265 37, chmod 90 -, fchmod 91 52, fchmodat 268 53, truncate 76 45, ftruncate 77 46,
fallocate 285 47, fsync 74 82, fdatasync 75 83, utime 132 -, utimes 235 -, futimesat 261 -,
utimensat 280 88, getdents 78 -, getdents64 217 61, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -,
pipe2 293 59, sendfile 40 71, copy_file_range 326 285, umask 95 166, statfs 137 43, fstatfs 138 44,
fadvise64 221 223,

mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, brk 12 214, madvise 28 233, msync 26 227,
membarrier 324 283,

set_robust_list 273 99, get_robust_list 274 100, rseq 334 293, futex 202 98, set_tid_address 218 96,
gettid 186 178, sched_yield 24 124, sched_getaffinity 204 123, exit 60 93, exit_group 231 94,
arch_prctl 158 -,

rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigsuspend 130 133, rt_sigtimedwait 128 137, sigaltstack 131 132, pause 34 -, alarm 37 -,
setitimer 38 103, getitimer 36 102, kill 62 129, tkill 200 130, tgkill 234 131,
restart_syscall 219 128, wait4 61 260, waitid 247 95,

clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101,
gettimeofday 96 169, time 201 -, times 100 153, getrusage 98 165,

poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20,
epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, eventfd 284 -, eventfd2 290 19,

uname 63 160, getpid 39 172, getppid 110 173, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158, getpgid 121 155,
getpgrp 111 -, getsid 124 156, sysinfo 99 179, getcpu 309 168, getrandom 318 278, getrlimit 97 163,
prlimit64 302 261, getpriority 140 141,

recvfrom 45 207, shutdown 48 210, getsockname 51 204, getpeername 52 205, getsockopt 55 209
"""

# Allowed for some values of an argument; see `_rules`.
CONDITIONAL = """
clone 56 220, prctl 157 167, socketpair 53 199, sendto 44 206, fcntl 72 25, flock 73 32, ioctl 16 29
"""

CLONE3 = 435
LAST_KNOWN = 450

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_IF_ABOVE = 0x25  # BPF_JMP | BPF_JGT | BPF_K
_JUMP_IF_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06

ALLOW = 0x7FFF0000
KILL = 0x80000000
ERRNO = 0x00050000
_EPERM, _ENOSYS = 1, 38
REFUSE = ERRNO | _EPERM
_PRETEND = ERRNO  # error 0: the call returns 0 and does nothing

# Where the kernel puts them in what the program reads.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

_CLONE_THREAD = 0x00010000
_CLONE_NEW_NAMESPACES = 0x7E020000
_AF_UNIX = 1
_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA = 15, 16, 0x53564D41
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_OFD_GETLK, F_DUPFD_CLOEXEC, F_GETPIPE_SZ
_FCNTL = (0, 1, 2, 3, 4, 5, 36, 1030, 1032)
_FCNTL_LOCKS = (6, 7, 37, 38)  # F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW
# TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_IOCTL = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)


def build_filter(machine: str) -> bytes:
    """Returns the program for `machine`: allow, EPERM, or ENOSYS if libc has a fallback."""
    if machine not in AUDIT_ARCH:
        raise OSError(f"{machine} is not among the processors {', '.join(ARCHITECTURES)}")
    program = [
        _instruction(_LOAD_WORD, _ARCHITECTURE),
        _instruction(_JUMP_IF_EQUAL, AUDIT_ARCH[machine], skip_if_true=1),
        _instruction(_RETURN, KILL),  # 32-bit calls have other numbers
        _instruction(_LOAD_WORD, _NUMBER),
        _instruction(_JUMP_IF_ABOVE, _X32_BIT - 1, skip_if_false=1),
        _instruction(_RETURN, KILL),
    ]
    for number in sorted(call_numbers(ALLOWED, machine).values()):
        program += _if_value(_JUMP_IF_EQUAL, number, ALLOW)
    conditional = call_numbers(CONDITIONAL, machine)
    for name, tests in _rules().items():
        body = [*tests, _instruction(_RETURN, REFUSE)]
        number = conditional[name]
        program += [_instruction(_JUMP_IF_EQUAL, number, skip_if_false=len(body)), *body]
    program += _if_value(_JUMP_IF_EQUAL, CLONE3, ERRNO | _ENOSYS)  # libc then uses clone
    program += _if_value(_JUMP_IF_ABOVE, LAST_KNOWN, ERRNO | _ENOSYS)
    program.append(_instruction(_RETURN, REFUSE))
    return b"".join(program)


def call_numbers(table: str, machine: str) -> dict[str, int]:
    """Returns the numbers of a table's calls on this processor, by name."""
    column = 1 + ARCHITECTURES.index(machine)
    rows = (entry.split() for entry in table.split(","))
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def _rules() -> dict[str, list[bytes]]:
    """Returns the calls that depend on an argument; values that no rule allows are refused."""
    return {
        "clone": [
            _load_argument(0),
            *_if_value(_JUMP_IF_ANY_BIT, _CLONE_NEW_NAMESPACES, REFUSE),
            *_if_value(_JUMP_IF_ANY_BIT, _CLONE_THREAD, ALLOW),
        ],
        "prctl": [_load_argument(0), *_if_any_of((_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA))],
        "socketpair": [_load_argument(0), *_if_any_of((_AF_UNIX,))],
        "sendto": [  # the address, a pointer of two halves, and its length
            _load_argument(4),
            _instruction(_JUMP_IF_EQUAL, 0, skip_if_false=5),
            _load_argument(4, high=True),
            _instruction(_JUMP_IF_EQUAL, 0, skip_if_false=3),
            _load_argument(5),
            *_if_value(_JUMP_IF_EQUAL, 0, ALLOW),
        ],
        "fcntl": [_load_argument(1), *_if_any_of(_FCNTL), *_if_any_of(_FCNTL_LOCKS, _PRETEND)],
        "flock": [_instruction(_RETURN, _PRETEND)],
        "ioctl": [_load_argument(1), *_if_any_of(_IOCTL)],
    }


def _load_argument(index: int, *, high: bool = False) -> bytes:
    """Loads half of an argument; except for pointers the kernel uses the low half."""
    return _instruction(_LOAD_WORD, _FIRST_ARGUMENT + 8 * index + (4 if high else 0))


def _if_any_of(values: tuple[int, ...], answer: int = ALLOW) -> list[bytes]:
    return [piece for value in values for piece in _if_value(_JUMP_IF_EQUAL, value, answer)]


def _if_value(test: int, value: int, answer: int) -> list[bytes]:
    return [_instruction(test, value, skip_if_false=1), _instruction(_RETURN, answer)]


def _instruction(code: int, value: int, skip_if_true: int = 0, skip_if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, skip_if_true, skip_if_false, value)
