"""`python -m kpybroker` and the `kpybroker` script."""

from __future__ import annotations

import sys

from kpybroker.errors import ConfigError


def main() -> None:
    """Run the command line: exit code 0, 1 for what could not be done, 2 for arguments and settings; one line each."""
    from kpybroker.cli.arguments import SERVING, run_serving

    arguments = sys.argv[1:]
    try:
        if arguments and arguments[0] in SERVING:
            run_serving(arguments)
        else:
            from kpybroker.cli.commands import run_command

            sys.exit(run_command(arguments))
    except ConfigError as problem:
        print(f"kpybroker: {problem}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
