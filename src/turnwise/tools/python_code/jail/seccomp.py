"""The filter of system calls, as a BPF program.

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

from .syscalls import ARCHITECTURES, CLONE3, LAST_KNOWN, allowed_numbers, conditional_number

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
    for number in allowed_numbers(machine):
        program += _if_value(_JUMP_IF_EQUAL, number, ALLOW)
    for name, tests in _rules().items():
        body = [*tests, _instruction(_RETURN, REFUSE)]
        number = conditional_number(name, machine)
        program += [_instruction(_JUMP_IF_EQUAL, number, skip_if_false=len(body)), *body]
    program += _if_value(_JUMP_IF_EQUAL, CLONE3, ERRNO | _ENOSYS)  # libc then uses clone
    program += _if_value(_JUMP_IF_ABOVE, LAST_KNOWN, ERRNO | _ENOSYS)
    program.append(_instruction(_RETURN, REFUSE))
    return b"".join(program)


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
        "fcntl": [
            _load_argument(1),
            *_if_any_of(_FCNTL),
            *_if_any_of(_FCNTL_LOCKS, _PRETEND),
        ],
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
