"""Runs the blocks of documentation pages unchanged, one after the other, as a reader who follows the page would.

A block of `sh` continues in the shell of the previous blocks. A block of `python` is a program, or a file if the
comment `<!-- file: NAME -->` is above it. A block without a language, directly after one of these, shows lines that the
block prints; `…` stands for any text. The comment `<!-- run by: FILE -->` names the test that runs the block below it
instead. `kpybroker dev` and `kpybroker serve` listen on a free port, which replaces 127.0.0.1:9092 in the page.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
WAIT_S = 240
ADDRESS = "127.0.0.1:9092"
CONTROL = "localhost:9095"
_BLOCK = re.compile(
    r"^(?:<!-- file: (?P<file>\S+) -->\n)?(?:<!-- run by: (?P<run_by>\S+) -->\n)?"
    r"```(?P<language>sh|python)\n(?P<text>.*?)^```\n"
    r"(?:\n```\n(?P<shown>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
PROGRAMS = {
    "kpybroker": '"$PYTHON" -m kpybroker',
    "python": '"$PYTHON"',
    "pytest": '"$PYTHON" -m pytest -p no:cacheprovider --rootdir .',
    "make": f"/usr/bin/env -i PATH=/usr/bin:/bin make --dry-run --silent --directory {ROOT}",
    "pip": '"$PYTHON" -m tests.pages',
}
FUNCTIONS = f"""
set -euo pipefail
serving() {{  # in the foreground of another window
  stop_serving
  rm -f ready.json
  kpybroker "$@" --ready-file ready.json > ready.said 2>&1 &
  SERVING=$!
  until test -s ready.json; do kill -0 $SERVING || {{ cat ready.said; return 1; }}; sleep 0.02; done
  cat ready.said
  KPYBROKER_BOOTSTRAP=$(sed -n 's/.*bootstrap=\\([^ ]*\\).*/\\1/p' ready.said)
  CONTROL=$(sed -n 's/.*control=http:..\\([^ ]*\\).*/\\1/p' ready.said)
  export KPYBROKER_BOOTSTRAP CONTROL
}}
stop_serving() {{
  if test -n "${{SERVING:-}}"; then kill $SERVING; wait $SERVING || true; fi
  SERVING=
}}
at_the_broker() {{ sed "s/{ADDRESS}/${{KPYBROKER_BOOTSTRAP:-{ADDRESS}}}/g" "$1"; }}
trap stop_serving EXIT
"""


class Block(NamedTuple):
    """A block that the reader copies, and the output that the page shows."""

    language: str
    text: str
    file: str
    shown: str
    run_by: str


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page, by its path from the root of the project."""
    text = (ROOT / page).read_text()
    return [
        Block(found["language"], found["text"], found["file"] or "", found["shown"] or "", found["run_by"] or "")
        for found in _BLOCK.finditer(text)
    ]


def script_of(blocks: list[Block], folder: Path, replaced: Mapping[str, str]) -> str:
    """A script that runs the blocks in `folder`; the output of each is in `folder / "said" / NUMBER`."""
    lines = [FUNCTIONS]
    for number, block in enumerate(blocks):
        text = block.text
        for shown, real in replaced.items():
            text = text.replace(shown, real)
        (folder / "blocks" / str(number)).write_text(text)
        if block.run_by:
            line = ":"
        elif block.file:
            line = f"cp blocks/{number} {block.file}"
        elif block.language == "python":
            line = f"at_the_broker blocks/{number} > program.py; python program.py"
        else:
            line = re.sub(r"^kpybroker (dev|serve)\b(?!.*&$)", r"serving \1", text, flags=re.MULTILINE)
            line = line.replace(ADDRESS, "$KPYBROKER_BOOTSTRAP").replace(CONTROL, "$CONTROL")
            line = line.replace("dev --control", "dev --control --control-port 0")
            line = re.sub(r"--port 9092\b", "--port 0", line)
            line = re.sub(r"^(serving dev)(?!.*--port)", r"\1 --port 0", line, flags=re.MULTILINE)
        lines.append(f"{{\n{line}\n}} > said/{number} 2>&1")
    return "\n".join(lines)


def run(page: str, folder: Path, replaced: Mapping[str, str] | None = None, wait_s: float = WAIT_S) -> list[str]:
    """Run the blocks of a page in a folder. Returns the output of each block. Raises AssertionError if a block fails.

    replaced: replacements for names in the page, such as a folder of the reader. A page that starts no broker uses the
    broker in KPYBROKER_BOOTSTRAP.
    """
    for name in ("blocks", "said", "bin"):
        (folder / name).mkdir()
    for name, line in PROGRAMS.items():
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    blocks = blocks_of(page)
    added = {
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHON": sys.executable,
    }
    process = subprocess.Popen(
        ["bash", "-c", script_of(blocks, folder, replaced or {})],
        cwd=folder,
        env={**os.environ, **added},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(wait_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    said = [(folder / "said" / str(number)) for number in range(len(blocks))]
    texts = [each.read_text() if each.exists() else "" for each in said]
    last = next((text for text in reversed(texts) if text), "")
    assert code == 0, f"{page}: code {code}: {last[-4000:]}"
    return texts


def is_shown(shown: str, said: str) -> bool:
    """Whether the lines that a page shows were printed, in this order; other lines may be between them."""
    lines = iter(said.splitlines())
    return all(
        any(re.fullmatch(pattern_of(line), printed.rstrip()) for printed in lines) for line in shown.splitlines()
    )


def pattern_of(line: str) -> str:
    """A regular expression for a line that a page shows."""
    pattern = re.escape(line.rstrip()).replace("…", ".*")
    pattern = pattern.replace(re.escape(ADDRESS), r"127\.0\.0\.1:\d+")
    pattern = re.sub(r"(data=)\S+", r"\1\\S+", pattern)
    return re.sub(r"(pid=)\d+", r"\1\\d+", pattern)


def pip(arguments: list[str]) -> None:
    """A replacement for pip, which accepts the package in a clone with existing extras, and the packages in the extras.

    Exits with 1 for any other package, because the tests have not installed it.
    """
    extras: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    names = {re.split(r"[^\w-]", each)[0] for needed in extras.values() for each in needed} - {"kpybroker"}
    known = names | {"."} | {f".[{extra}]" for extra in extras}
    command, *what = arguments
    unknown = [each for each in what if each not in known]
    if command != "install" or unknown:
        sys.exit(f"pip {' '.join(arguments)}: not known to work: {', '.join(unknown)}")


if __name__ == "__main__":
    pip(sys.argv[1:])
