"""`python -m kpybroker` and the `kpybroker` script."""

from __future__ import annotations

import io
import sys

SERVING = ("dev", "serve")


def main() -> None:
    """Run the command line. The exit code is 1 if the command failed, 2 for wrong arguments or settings, 130 after
    Ctrl-C (even during imports), else 0. Each error is printed as one line."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _write_utf8() -> None:
    """Windows has another encoding for files and pipes, which lacks most characters."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not without a console
            stream.reconfigure(encoding="utf-8")


def _run() -> None:
    if sys.platform == "win32":
        _write_utf8()
    arguments = sys.argv[1:]
    is_serving = bool(arguments) and arguments[0] in SERVING and "--control" not in arguments
    if is_serving:
        from kpybroker.cli import early

        early.prepare(until_hangup=arguments[0] == "dev" and "--detach" not in arguments)
    from kpybroker.errors import ConfigError

    try:
        if is_serving:
            from kpybroker.cli.arguments import run_serving

            run_serving(arguments)
        elif arguments[:1] == ["dev"]:
            from kpybroker.cli.arguments import read
            from kpybroker.testing import http_control

            http_control.run(read(arguments))
        else:
            from kpybroker.cli import standard_output
            from kpybroker.cli.commands import run_command

            standard_output.watch()
            sys.exit(run_command(arguments))
    except ConfigError as problem:
        print(f"kpybroker: {problem}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
