"""Terminals: one that remembers its screen, and one in which a command runs."""

import codecs
import contextlib
import io
import os
import pty
import re
import select
import time

from forked import Turnwise

_CODES = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")
_BEGUN = re.compile(r"\x1b(\[[?\d;]*)?$")


class Terminal(io.StringIO):
    """Give it to a console as its file; `screen` is what a person would see."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        super().__init__()
        self.width, self.height = width, height
        self.rows: list[str] = [""]
        self.row = self.column = 0
        self.scrolled: list[str] = []
        """What has left the screen at the top."""
        self.raw = ""
        self._begun = ""
        self.num_breaks = 0
        """How often a line was too long for the screen."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.raw += text
        length = len(text)
        text = self._begun + text
        begun = _BEGUN.search(text)  # the rest of the code comes with the next piece
        self._begun = begun[0] if begun else ""
        text = text.removesuffix(self._begun)
        place = 0
        for code in _CODES.finditer(text):
            self._print(text[place : code.start()])
            self._obey(code[1], code[2])
            place = code.end()
        self._print(text[place:])
        return length

    @property
    def screen(self) -> str:
        return "\n".join(row.rstrip() for row in self.rows).rstrip("\n")

    def _print(self, text: str) -> None:
        for character in text:
            if character == "\r":
                self.column = 0
            elif character == "\n":
                self.column = 0
                self._down()
            elif character >= " ":
                if self.column == self.width:
                    self.num_breaks += 1
                    self.column = 0
                    self._down()
                row = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = row[: self.column] + character + row[self.column + 1 :]
                self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")
        self._scroll()

    def _scroll(self) -> None:
        while len(self.rows) > self.height:
            self.scrolled.append(self.rows.pop(0))
            self.row -= 1

    def _obey(self, number: str, code: str) -> None:
        if code == "A":
            self.row = max(self.row - int(number or 1), 0)
        elif code == "K":
            assert number == "2"
            self.rows[self.row] = ""
        elif code == "H":
            assert number == ""
            self.row = self.column = 0
        elif code == "J":
            assert number == "2"
            self.rows = [""] * len(self.rows)
        else:
            assert code in "mhl", f"a code that this terminal does not know: {number}{code}"


class OnTerminal:
    """A command of turnwise in a terminal of its own, and what it has written so far."""

    def __init__(self, *arguments: str, screen: Terminal | None = None) -> None:
        self._end, theirs = pty.openpty()
        self.process = Turnwise(
            *arguments,
            **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
            env={"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", "NO_COLOR": None},
        )
        os.close(theirs)
        self._unread = b""
        self._screen = screen
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def type(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def has_more(self, seconds: float) -> bool:
        """Read what there is, or comes within so many seconds."""
        if not select.select([self._end], [], [], seconds)[0]:
            return False
        data = os.read(self._end, 65536)
        self._unread += data
        if self._screen is not None:
            self._screen.write(self._decode(data))
        return True

    def read_until(self, text: str, seconds: float = 90) -> str:
        """What was written up to this text, which must come; the rest stays unread."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self._unread:
            left = max(0.0, deadline - time.monotonic())
            assert self.has_more(left), f"{text!r} did not come; seen: {self._unread!r}"
        before, self._unread = self._unread.split(text.encode(), 1)
        return before.decode(errors="replace") + text

    def insist(self, act, is_done, *, is_ending: bool = False) -> None:
        """A key or a signal that comes while the terminal is being set up may be lost for now; a
        person tries again."""
        for _ in range(60):
            act()
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline:
                if is_done():
                    return
                assert is_ending or self.process.poll() is None, "the program has ended"
                with contextlib.suppress(OSError):  # it has ended
                    self.has_more(0.1)
        self.process.kill()
        raise AssertionError(f"nothing came of it; seen: {self._unread!r}")

    def read_to_end(self) -> None:
        """Read until the other side is closed."""
        with contextlib.suppress(OSError):
            while self.has_more(90):
                pass

    def has(self, text: str) -> bool:
        return text.encode() in self._unread
