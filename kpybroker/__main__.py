"""`python -m kpybroker` and the `kpybroker` script."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; `dev` and `serve` do not load what only the other commands need."""
    from kpybroker.cli.app import run

    run(sys.argv[1:])


if __name__ == "__main__":
    main()
