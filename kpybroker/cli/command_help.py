"""Help pages of the commands that are declared with typer."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from kpybroker.cli.help_page import HelpPage, HelpRow
from kpybroker.cli.options import command_config_option


def page_of(command: Any, path: str) -> HelpPage:
    """The help page of a command or a group of commands. `path`: the command line that calls it."""
    arguments = [(_metavar(each), each) for each in command.params if each.param_type_name == "argument"]
    shown = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    options = [HelpRow(_option_name(each), each.help or "") for each in shown]
    options.append(HelpRow("-h, --help", "Show this page."))
    commands = getattr(command, "commands", {})
    usage = " ".join([path, "[OPTIONS]", *(name for name, _ in arguments)] + ["COMMAND ..."] * bool(commands))
    return HelpPage(
        usage,
        command.help or "",
        (
            ("Arguments", [HelpRow(name, each.help or "") for name, each in arguments]),
            ("Commands", command_rows(commands)),
            ("Options", options),
        ),
        command.epilog or "",
    )


def command_rows(commands: Any) -> list[HelpRow]:
    """The commands of a group, with the first paragraph of their help."""
    summaries: dict[str, str] | None = getattr(commands, "summaries", None)
    if summaries is None:
        summaries = {name: command.help or "" for name, command in commands.items()}
    return [HelpRow(name, summary.split("\n\n")[0]) for name, summary in summaries.items()]


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    shown = f"{name}..." if argument.nargs == -1 else name
    return shown if argument.required else f"[{shown}]"


def _option_name(option: Any) -> str:
    takes = "" if option.is_flag or not option.metavar else f" {option.metavar}"
    return ", ".join(sorted(option.opts, key=len)) + takes


def _add_command_config(params: list[Any]) -> None:
    """Add --command-config to a command that connects to a broker."""
    at = next((at for at, each in enumerate(params) if each.name == "bootstrap"), None)
    if at is not None:
        params.insert(at + 1, command_config_option())


class Command(TyperCommand):
    """A command whose help is a HelpPage. Commands that connect to a broker also accept --command-config."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _add_command_config(self.params)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(page_of(self, ctx.command_path).render())


class CommandGroup(TyperGroup):
    """A group of commands whose help is a HelpPage."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _add_command_config(self.params)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(page_of(self, ctx.command_path).render())
