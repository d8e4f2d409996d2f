"""The display of a running training: live in a terminal and in a notebook, lines elsewhere."""

import multiprocessing
import os
import threading

from turnwise.progress.lines import JsonReporter, LegibleConsole, LineReporter


def make_reporter(*, plain: bool = False, as_json: bool = False) -> LineReporter:
    """Return a display for the standard output; leaving its context restores the terminal."""
    from turnwise.progress.live import LiveReporter, NotebookReporter

    if as_json:
        return JsonReporter()
    is_main = threading.current_thread() is threading.main_thread()
    if plain or not is_main:  # several threads may train at once: only lines can share a terminal
        return LineReporter()
    console = LegibleConsole(highlight=False, markup=False, emoji=False)
    if console.is_jupyter:
        return NotebookReporter()
    if not console.is_terminal or console.is_dumb_terminal:
        return LineReporter()
    return LiveReporter(console)


def is_worker() -> bool:
    """Return whether this process is a worker of multiprocessing or of torchrun."""
    return multiprocessing.parent_process() is not None or os.environ.get("RANK", "0") != "0"
