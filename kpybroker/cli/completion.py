"""`kpybroker completion`: a shell script with all commands and options, so that Tab does not start kpybroker."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from kpybroker.cli import arguments, options
from kpybroker.cli.show import show_json, show_line
from kpybroker.errors import ConfigError

Words = dict[str, list[str]]
"""The commands and options of each command, by its path (`/topics/create`, "" for the program)."""

SHELLS = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")], as_json: options.Json = False
) -> None:
    """Print the completion script of a shell.

    bash: source <(kpybroker completion bash), in ~/.bashrc. zsh: the same with zsh, in ~/.zshrc after compinit.
    fish: kpybroker completion fish > ~/.config/fish/completions/kpybroker.fish.
    """
    if shell not in SHELLS:
        raise ConfigError(f"no completion for {shell!r}; there is one for {', '.join(SHELLS)}")
    from kpybroker.cli.commands import tree

    found = words(tree())
    if as_json:
        show_json(found)
    else:
        show_line(SCRIPTS[shell](found))


def words(program: Any) -> Words:
    """All words that can be completed."""
    found: Words = {}

    def walk(command: Any, path: str) -> None:
        commands = getattr(command, "commands", {})
        long = [name for each in command.params for name in each.opts if name.startswith("--")]
        if path.removeprefix("/") in ("dev", "serve"):  # argparse parses their options
            long = re.findall(r"--[a-z-]+", arguments.help_of(path.removeprefix("/")))
        found[path] = [*commands, *dict.fromkeys([*long, "--help"])]
        for name, one in commands.items():
            walk(one, f"{path}/{name}")

    walk(program, "")
    return found


def _cases(found: Words, line: Callable[[str, str], str]) -> str:
    return "\n".join(line(path or '""', " ".join(them)) for path, them in found.items())


def _bash(found: Words) -> str:
    paths = "|".join(path for path in found if path)
    cases = _cases(found, lambda path, them: f'    {path}) them="{them}" ;;')
    return f"""_kpybroker() {{
  local path="" word them=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$path/$word" in
    {paths}) path="$path/$word" ;;
    esac
  done
  case "$path" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$them" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _kpybroker kpybroker"""


def _zsh(found: Words) -> str:
    paths = "|".join(path for path in found if path)
    cases = _cases(found, lambda path, them: f"    {path}) compadd -- {them} ;;")
    return f"""_kpybroker() {{
  local at="" word
  for word in ${{words[2,CURRENT-1]}}; do
    case "$at/$word" in
    {paths}) at="$at/$word" ;;
    esac
  done
  case "$at" in
{cases}
  esac
  _files
}}
compdef _kpybroker kpybroker"""


def _fish(found: Words) -> str:
    paths = " ".join(path for path in found if path)
    lines = "\n".join(
        f"complete -c kpybroker -n 'test \"$(__kpybroker_path)\" = \"{path}\"' -a '{' '.join(them)}'"
        for path, them in found.items()
    )
    return f"""function __kpybroker_path
  set -l at ""
  for word in (commandline -opc)[2..-1]
    if contains -- "$at/$word" {paths}
      set at "$at/$word"
    end
  end
  echo $at
end
{lines}"""


SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
