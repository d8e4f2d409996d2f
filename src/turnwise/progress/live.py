"""The live display of a run in a terminal, redrawn in place by a thread of its own.

While it is shown, no other thread writes to the terminal: other output (an environment's `print`, a
library's warning, a log record) is queued and printed above the display with the next refresh.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from turnwise.progress.display import Display, printed_through
from turnwise.progress.lines import as_block
from turnwise.progress.run_state import RunInfo, RunState
from turnwise.progress.run_view import RunView

REFRESH_SECONDS = 0.25
# Synchronized output: a terminal that supports it shows everything between these at once.
_BEGIN_SYNC, _END_SYNC = "\x1b[?2026h", "\x1b[?2026l"


class LiveReporter(Display):
    """Records events, which is safe in a signal handler; a thread of its own draws them."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.state = RunState()
        self.console = console
        # Fixed now: `sys.stdout` is replaced below by the stream that prints above the display.
        self.console.file = console.file
        self._view = _View(self.state)
        self._live: Live | None = None
        self._width = console.width
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._above: deque[Text] = deque()
        """Lines to print above the display with the next refresh."""

    def __enter__(self) -> Self:
        super().__enter__()
        out, err = (QueuedStream(stream, self._above) for stream in (sys.stdout, sys.stderr))
        self._entered.enter_context(printed_through(out, err))
        self._entered.enter_context(_as_streams(out, err))
        self._start()
        self._thread = threading.Thread(target=self._keep_drawing, name="display", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def begin(self, run: RunInfo) -> None:
        self.state.begin(run)
        self._view.has_begun = True

    def step(self, metrics: Mapping[str, float]) -> None:
        self.state.step(metrics)

    def say(self, text: str) -> None:
        """Show a line inside the display; text of several lines, or after the end, above it."""
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
        """Stop refreshing; the last state stays on the screen."""
        self.state.end(outcome)
        self._close()

    def _close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._entered.close()
        with contextlib.suppress(OSError):  # the terminal may be gone
            if self._live is not None:
                self._clear_if_narrower()
                self._print_above()
                self._live.transient = not self._view.has_begun  # an empty display is removed
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

    def _keep_drawing(self) -> None:
        while not self._over.wait(REFRESH_SECONDS):
            try:
                self._clear_if_narrower()
                if self._live is not None:
                    self._refresh(self._live)
            except OSError:  # the terminal is gone; the run continues
                return

    def _refresh(self, live: Live) -> None:
        self.console.file.write(_BEGIN_SYNC)
        try:
            self._print_above()
            live.refresh()
        finally:
            self.console.file.write(_END_SYNC)
            self.console.file.flush()

    def _show_warning(self, text: str) -> None:
        self._say_above(text)

    def _say_above(self, text: str) -> None:
        self._above.append(Text(as_block(text)))

    def _print_above(self) -> None:
        while self._above:
            self.console.print(self._above.popleft(), soft_wrap=True)

    def _clear_if_narrower(self) -> None:
        """Clear a terminal that was made narrower: its wrapped lines have unknown positions."""
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


class QueuedStream:
    """Wraps a stream, and queues whole lines to be printed above the display."""

    def __init__(self, stream: Any, queue: deque[Text]) -> None:
        self._stream = stream
        self._queue = queue
        self._begun: dict[int, str] = {}
        """The unfinished line of each thread."""

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        *lines, begun = (self._begun.pop(thread, "") + text).split("\n")
        self._queue.extend(_printed(line) for line in lines)
        if begun:
            self._begun[thread] = begun
        return len(text)

    def flush(self) -> None:
        """Do nothing: a line is printed when it is complete."""

    def close_lines(self) -> None:
        """Queue the unfinished lines as well."""
        while self._begun:
            self._queue.append(_printed(self._begun.popitem()[1]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _printed(line: str) -> Text:
    """Return a line as a terminal shows it: with colours, and only what follows the last return."""
    return Text.from_ansi(line.rstrip("\r").rpartition("\r")[2])


@contextlib.contextmanager
def _as_streams(out: QueuedStream, err: QueuedStream) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        yield
    finally:
        for stream in (out, err):
            stream.close_lines()
        # Streams that others have set since (pytest, contextlib.redirect_stdout) stay.
        sys.stdout = before[0] if sys.stdout is out else sys.stdout
        sys.stderr = before[1] if sys.stderr is err else sys.stderr
