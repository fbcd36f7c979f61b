"""Runs a command and turns its result into an exit code, with one line on stderr if it failed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import typer
import typer.main

from kpybroker.cli import options, standard_output
from kpybroker.cli.app import app
from kpybroker.client.client import CommandFailed

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Raises ConfigError for invalid settings."""
    options.forget()
    try:
        ended = tree()(list(arguments), prog_name="kpybroker", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as misuse:
        return _say_misuse(misuse)
    except BrokenPipeError:
        return _reader_has_seen_enough()
    except (CommandFailed, OSError) as failure:
        unwritten = standard_output.failure()
        if unwritten is not None:
            _reader_has_seen_enough()
        elif isinstance(failure, OSError):
            raise
        print(f"kpybroker: {unwritten or failure}", file=sys.stderr)
        return FAILED
    except SystemExit as ended_by_typer:
        if isinstance(ended_by_typer.__context__, BrokenPipeError):  # typer turns a closed pipe into SystemExit
            return _reader_has_seen_enough()
        raise
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return ended if isinstance(ended, int) else DONE


def _reader_has_seen_enough() -> int:
    """Redirect stdout, which its reader has closed, so that Python does not write the remaining output again at
    exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE


@cache
def tree() -> Callable[..., Any]:
    """The program as typer builds it; each command is created on first use."""
    return typer.main.get_command(app)


def _say_misuse(misuse: typer.TyperException) -> int:
    context = getattr(misuse, "ctx", None)
    if context is not None and type(misuse).__name__ == "NoArgsIsHelpError":
        print(context.get_help(), file=sys.stderr)
        return MISUSED
    text = " ".join(getattr(misuse, "format_message", misuse.__str__)().split())
    where = context.command_path if context is not None else "kpybroker"
    print(f"kpybroker: {text.rstrip('.')}; see `{where} --help`", file=sys.stderr)
    return MISUSED
