"""Starts the command `ropeway`: Ctrl-C ends it with one line, also while its modules are imported.

It stands beside the package, as what lies in a package is run after the package's own imports.
"""

import os
import signal
import sys


def main() -> int:
    """Runs the command; gives the exit status."""
    before = signal.signal(signal.SIGINT, _stop)
    from ropeway import cli

    signal.signal(signal.SIGINT, before)
    return cli.main()


def _stop(*_: object) -> None:
    """Ends the process at once; an import might swallow an exception."""
    sys.stderr.write("ropeway: stopped\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
