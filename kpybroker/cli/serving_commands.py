"""Entries for `kpybroker dev` and `serve` in the program's list of commands; `arguments.py` parses their options."""

from __future__ import annotations

import typer

from kpybroker.cli.arguments import run_serving

PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def dev(context: typer.Context) -> None:
    """Start a broker for local development, on 127.0.0.1:9092, with its data in ./kpybroker-data."""
    run_serving(["dev", *context.args])


def serve(context: typer.Context) -> None:
    """Start a broker from a properties file."""
    run_serving(["serve", *context.args])


dev.context_settings = serve.context_settings = PASSED_ON  # type: ignore[attr-defined]
