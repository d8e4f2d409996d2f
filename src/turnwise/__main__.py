"""The command `turnwise`, also as `python -m turnwise`."""

import sys

try:
    import signal
except KeyboardInterrupt:  # Ctrl-C within the first milliseconds
    sys.exit(130)


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while it is imported."""
    # As an exception it may be swallowed inside of an import, which then keeps its lock for ever.
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if raises:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from turnwise.cli import main as run

    if raises:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
