"""The system calls that a Python program may make: those for computing, files and threads.

All others are refused: starting processes and programs, sockets, other processes' memory, mounts,
namespaces, kernel memory outside of the address space (memfd, shared memory, message queues,
timers, inotify, io_uring, larger socket and pipe buffers), and all calls of newer kernels.
"""

from __future__ import annotations

ARCHITECTURES = ("x86_64", "aarch64")

# name, number on x86_64, number on aarch64; "-" if it does not exist there
_ALLOWED = """
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

# Allowed for some values of an argument; see `seccomp.py`.
_CONDITIONAL = """
clone 56 220, prctl 157 167, socketpair 53 199, sendto 44 206, fcntl 72 25, flock 73 32, ioctl 16 29
"""

CLONE3 = 435
LAST_KNOWN = 450


def allowed_numbers(machine: str) -> list[int]:
    """Returns the calls that are allowed with any arguments."""
    return sorted(_read(_ALLOWED, machine).values())


def conditional_number(name: str, machine: str) -> int:
    return _read(_CONDITIONAL, machine)[name]


def _read(table: str, machine: str) -> dict[str, int]:
    column = 1 + ARCHITECTURES.index(machine)
    rows = (entry.split() for entry in table.split(","))
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
