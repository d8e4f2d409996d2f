"""The command `turnwise`, also as `python -m turnwise`."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while it is imported."""
    try:
        from turnwise.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
