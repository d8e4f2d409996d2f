"""System calls for which Python has no function."""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38

_SECCOMP_MODE_FILTER = 2
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_CAPABILITY_VERSION = 0x20080522
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(spaces: int) -> None:
    _call("unshare", spaces)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _call("mount", source, target, kind, flags, options, what=f"mount {target}")


def set_mount_attributes(target: str, attributes: int, *, recursive: bool) -> None:
    """Adds attributes such as read-only to a mount. Needs Linux 5.12."""
    request = struct.pack("=QQQQ", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    what = f"mount_setattr {target}"
    _call("syscall", _SYS_MOUNT_SETATTR, _AT_FDCWD, target, flags, request, len(request), what=what)


def unmount(target: str) -> None:
    _call("umount2", target, MNT_DETACH, what=f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    _call("syscall", number, new_root, put_old, what="pivot_root")


def prctl(option: int, value: int) -> None:
    _call("prctl", option, value, 0, 0, 0)


def set_host_name(name: str) -> None:
    _call("sethostname", name, len(name))


def drop_capabilities() -> None:
    _call("capset", struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24))


def install_filter(instructions: bytes) -> None:
    """Applies this BPF program to every further system call of this process."""
    # struct sock_fprog: the number of instructions, padding, and a pointer to them.
    address = ctypes.cast(ctypes.c_char_p(instructions), ctypes.c_void_p).value
    program = struct.pack("@HP", len(instructions) // 8, address)
    _call("prctl", PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0, what="seccomp")


def _call(function: str, *args: int | str | bytes, what: str = "") -> None:
    """Calls a function of libc. On our processors a long may stand for a shorter number."""
    numbers_and_pointers = [
        ctypes.c_long(value)
        if isinstance(value, int)
        else ctypes.c_char_p(value.encode() if isinstance(value, str) else value)
        for value in args
    ]
    if getattr(_libc, function)(*numbers_and_pointers) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what or function}: {os.strerror(number)}")
