"""`python -m kpybroker` and the `kpybroker` script."""

from __future__ import annotations

import sys

from kpybroker.errors import ConfigError


def main() -> None:
    """Run the command line; a problem of settings or arguments is one line on stderr and exit code 2."""
    from kpybroker.cli.arguments import SERVING, run_serving

    arguments = sys.argv[1:]
    try:
        if arguments and arguments[0] in SERVING:
            run_serving(arguments)
        else:
            from kpybroker.cli.app import app

            app(arguments, prog_name="kpybroker")
    except ConfigError as problem:
        print(f"kpybroker: {problem}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
