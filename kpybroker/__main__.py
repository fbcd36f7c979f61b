"""`python -m kpybroker` and the `kpybroker` script."""

from __future__ import annotations

import sys

SERVING = ("dev", "serve")
WINDOWS = (
    "kpybroker: it does not run natively on Windows, which lacks file operations that a log needs; install WSL2 "
    "(`wsl --install`) and start kpybroker there: clients on Windows reach it at localhost"
)


def main() -> None:
    """Run the command line. Exit code 0; 1 if the command failed; 2 for wrong arguments or settings; 130 after Ctrl-C,
    also while modules are imported. Each error is one line."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    if sys.platform == "win32":
        print(WINDOWS, file=sys.stderr)
        sys.exit(2)
    arguments = sys.argv[1:]
    is_serving = bool(arguments) and arguments[0] in SERVING
    if is_serving:
        from kpybroker.cli import early

        early.prepare(until_hangup=arguments[0] == "dev" and "--detach" not in arguments)
    from kpybroker.errors import ConfigError

    try:
        if is_serving:
            from kpybroker.cli.arguments import run_serving

            run_serving(arguments)
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
