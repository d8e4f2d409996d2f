"""A run in a terminal: a picture that is drawn anew while it goes, and what is said above it.

Only one thread writes to the terminal while the picture is there. What anybody else prints (the
environment's `print`, a library's warning, a log) is queued and appears above the picture: two
threads that write at once would leave pieces of it behind.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from turnwise.progress.display import Display
from turnwise.progress.lines import as_block
from turnwise.progress.log_records import printed_through
from turnwise.progress.run_state import RunState
from turnwise.progress.run_view import RunView

if TYPE_CHECKING:
    from turnwise.trainer.reporter import RunInfo

SECONDS_BETWEEN_PICTURES = 0.25
# Asks a terminal that knows it to show all that comes until the second one at once.
_TOGETHER, _DONE = "\x1b[?2026h", "\x1b[?2026l"


class LiveReporter(Display):
    """Only notes what it is told, which is quick and safe in a signal's handler; a thread draws."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.state = RunState()
        self.console = console
        # To the stream of now: the name will mean the one that prints above the picture.
        self.console.file = console.file
        self._view = _View(self.state)
        self._live: Live | None = None
        self._width = console.width
        self._over = threading.Event()
        self._painter: threading.Thread | None = None
        self._above: deque[Text] = deque()
        """What is to be printed above the picture, with the next one."""

    def __enter__(self) -> Self:
        super().__enter__()
        out, err = (Above(stream, self._above) for stream in (sys.stdout, sys.stderr))
        self._entered.enter_context(printed_through(out, err))
        self._entered.enter_context(_as_streams(out, err))
        self._start()
        self._painter = threading.Thread(target=self._paint_on, name="display", daemon=True)
        self._painter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def begin(self, run: RunInfo) -> None:
        self.state.begin(run)
        self._view.has_begun = True

    def step(self, metrics: Mapping[str, float]) -> None:
        self.state.step(metrics)

    def say(self, text: str) -> None:
        """A line stands in the picture while there is room; a traceback, or a word after the end,
        stays on the screen."""
        if self.state.outcome is not None:
            self._say_above(text)
            self._print_above()
        elif "\n" in text:
            self._say_above(text)
        else:
            self.state.say(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self.state.progress(what, done, total)

    def end(self, outcome: str) -> None:
        """The last picture stays."""
        self.state.end(outcome)
        self._close()

    def _close(self) -> None:
        self._over.set()
        if self._painter is not None:
            self._painter.join()
            self._painter = None
        self._entered.close()
        with contextlib.suppress(OSError):  # the terminal may be gone
            if self._live is not None:
                self._clear_if_narrower()
                self._print_above()
                self._live.transient = not self._view.has_begun  # nothing worth keeping
                self._live.stop()
            self._print_above()
        self._live = None

    def _start(self) -> None:
        self._live = Live(
            self._view,
            console=self.console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def _paint_on(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_PICTURES):
            try:
                self._clear_if_narrower()
                if self._live is not None:
                    self._together(self._live)
            except OSError:  # the terminal is gone; the run is worth more than its picture
                return

    def _together(self, live: Live) -> None:
        self.console.file.write(_TOGETHER)
        try:
            self._print_above()
            live.refresh()
        finally:
            self.console.file.write(_DONE)
            self.console.file.flush()

    def _show_warning(self, text: str) -> None:
        self._say_above(text)

    def _say_above(self, text: str) -> None:
        self._above.append(Text(as_block(text)))

    def _print_above(self) -> None:
        while self._above:
            self.console.print(self._above.popleft(), soft_wrap=True)

    def _clear_if_narrower(self) -> None:
        """A terminal made narrower breaks the lines of the last picture, whose place is then
        unknown: begin on an empty screen."""
        before, self._width = self._width, self.console.width
        if self._width < before and self._live is not None:
            self._live.stop()
            self.console.clear()
            self._start()


class _View:
    """A spinner while model and engine are loaded, then the run."""

    def __init__(self, state: RunState) -> None:
        self.has_begun = False
        self._setting_up = Spinner("dots", "setting up")
        self._run = RunView(state)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._run if self.has_begun else self._setting_up


class Above:
    """A stream whose lines are queued, to be printed above the picture; else it is the original."""

    def __init__(self, stream: Any, queue: deque[Text]) -> None:
        self._stream = stream
        self._queue = queue
        self._begun: dict[int, str] = {}
        """The line that each thread has begun."""

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        *lines, begun = (self._begun.pop(thread, "") + text).split("\n")
        self._queue.extend(_printed(line) for line in lines)
        if begun:
            self._begun[thread] = begun
        return len(text)

    def flush(self) -> None:
        """A line is printed when it is whole."""

    def close_lines(self) -> None:
        """Give up lines that were begun: nobody will end them."""
        while self._begun:
            self._queue.append(_printed(self._begun.popitem()[1]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _printed(line: str) -> Text:
    """As a terminal shows it: colours stay, and a bar that went back to the line's start is its
    last state."""
    return Text.from_ansi(line.rstrip("\r").rpartition("\r")[2])


@contextlib.contextmanager
def _as_streams(out: Above, err: Above) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        yield
    finally:
        for stream in (out, err):
            stream.close_lines()
        # What was put there meanwhile (by pytest, by contextlib.redirect_stdout) stays.
        sys.stdout = before[0] if sys.stdout is out else sys.stdout
        sys.stderr = before[1] if sys.stderr is err else sys.stderr
