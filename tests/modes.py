"""Run a block with or without the fast forms."""

from contextlib import contextmanager

from turnwise.plain_mode import is_plain, set_plain


@contextmanager
def plain_mode(plain=True):
    before = is_plain()
    set_plain(plain)
    try:
        yield
    finally:
        set_plain(before)
