"""What every display of a run does while it is entered."""

from __future__ import annotations

import contextlib
from typing import Self

from turnwise.progress.log_records import Warnings, shown_elsewhere


class Display:
    """Base of the reporters that show a run to a person.

    While one is entered, it shows what turnwise logs as a warning, and the user's own handlers do
    not print the same a second time.
    """

    def __init__(self) -> None:
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._entered.enter_context(Warnings(self._show_warning))
        self._entered.enter_context(shown_elsewhere())
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def say(self, text: str) -> None:
        """Show one message."""
        raise NotImplementedError

    def _show_warning(self, text: str) -> None:
        self.say(text)
