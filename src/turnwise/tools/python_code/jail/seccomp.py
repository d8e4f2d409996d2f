"""The filter of system calls, as a small BPF program.

Three calls depend on their first argument: `clone` may only start threads, `socketpair` only make
the pair that asyncio talks to itself through, and `prctl` only name things. (With the other
options of `prctl` a program could outlive the process that watches it.)
"""

from __future__ import annotations

import struct

from .syscalls import CLONE3, LAST_KNOWN, allowed_numbers, conditional_number

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_IF_ABOVE = 0x25  # BPF_JMP | BPF_JGT | BPF_K
_JUMP_IF_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06

_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERRNO = 0x00050000
_EPERM, _ENOSYS = 1, 38

# Where the kernel puts them in what the program reads.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

_CLONE_THREAD = 0x00010000
_AF_UNIX = 1
_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA = 15, 16, 0x53564D41


def build_filter(machine: str) -> bytes:
    """The program for `machine`: allow, refuse with EPERM, or ENOSYS where libc has another way."""
    program = [
        _instruction(_LOAD_WORD, _ARCHITECTURE),
        _instruction(_JUMP_IF_EQUAL, _AUDIT_ARCH[machine], skip_if_true=1),
        _instruction(_RETURN, _KILL),  # 32-bit calls have other numbers
        _instruction(_LOAD_WORD, _NUMBER),
        _instruction(_JUMP_IF_ABOVE, _X32_BIT - 1, skip_if_false=1),
        _instruction(_RETURN, _KILL),
    ]
    for number in allowed_numbers(machine):
        program += _answer_if_equal(number, _ALLOW)
    program += _if_first_argument("clone", machine, _JUMP_IF_ANY_BIT, [_CLONE_THREAD])
    program += _if_first_argument("socketpair", machine, _JUMP_IF_EQUAL, [_AF_UNIX])
    names = [_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA]
    program += _if_first_argument("prctl", machine, _JUMP_IF_EQUAL, names)
    program += _answer_if_equal(CLONE3, _ERRNO | _ENOSYS)  # libc then uses clone
    program += [
        _instruction(_JUMP_IF_ABOVE, LAST_KNOWN, skip_if_false=1),
        _instruction(_RETURN, _ERRNO | _ENOSYS),
        _instruction(_RETURN, _ERRNO | _EPERM),
    ]
    return b"".join(program)


def _answer_if_equal(number: int, answer: int) -> list[bytes]:
    return [
        _instruction(_JUMP_IF_EQUAL, number, skip_if_false=1),
        _instruction(_RETURN, answer),
    ]


def _if_first_argument(name: str, machine: str, test: int, values: list[int]) -> list[bytes]:
    """Allow a call if its first argument passes one of the tests, else refuse it."""
    tests = [
        piece
        for value in values
        for piece in (_instruction(test, value, skip_if_false=1), _instruction(_RETURN, _ALLOW))
    ]
    # The kernel reads the low half only of these arguments, so that is what is looked at.
    body = [_instruction(_LOAD_WORD, _FIRST_ARGUMENT), *tests]
    body.append(_instruction(_RETURN, _ERRNO | _EPERM))
    number = conditional_number(name, machine)
    return [_instruction(_JUMP_IF_EQUAL, number, skip_if_false=len(body)), *body]


def _instruction(code: int, value: int, skip_if_true: int = 0, skip_if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, skip_if_true, skip_if_false, value)
