"""Generates docs/modules.md, which lists every module with the first sentence of its docstring.

`python -m tests.modules_page` writes the page.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.test_layers import LADDERS, ROWS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kpybroker"
PAGE = ROOT / "docs" / "modules.md"
DECLARATIONS = {"wire/rpc": "requests and responses", "wire/stored": "stored records"}
"""Folders with one file per message: their files are counted, not listed."""
HEAD = """# Modules

One line for each module, from the first sentence of its docstring, in the order of the layers in
[ARCHITECTURE.md](../ARCHITECTURE.md): a package uses those below it. `python -m tests.modules_page` writes this page.
"""


def sentence(file: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z-])", first)[0].rstrip(".:").replace("|", "\\|")


def order(package: str) -> list[str]:
    """The layers of a package from top to bottom."""
    return list(reversed(LADDERS.get(package, [])))


def page() -> str:
    """The whole page, as Markdown."""
    parts = [HEAD]
    for row in ROWS:
        for name in row:
            if (PACKAGE / name).is_dir():
                parts.append(_package(name))
            elif (PACKAGE / f"{name}.py").exists() and name != "__main__":
                parts.append(f"\n## {name}.py\n\n{sentence(PACKAGE / f'{name}.py')}.\n")
    return "".join(parts)


def _package(name: str) -> str:
    folders: dict[str, list[Path]] = defaultdict(list)
    for file in sorted((PACKAGE / name).rglob("*.py")):
        if file.name != "__init__.py":
            folders[str(file.parent.relative_to(PACKAGE))].append(file)
    ladder = order(name)

    def place(folder: str) -> tuple[int, str]:
        part = folder.partition("/")[2].split("/")[0]
        return (ladder.index(part) if part in ladder else -1, folder)

    lines = [f"\n## {name}\n"]
    for folder in sorted(folders, key=place):
        files = folders[folder]
        if folder in DECLARATIONS:
            lines.append(f"\n### {folder}\n\n{len(files)} files: the {DECLARATIONS[folder]} of the protocol.\n")
            continue
        title = "" if folder == name else f"\n### {folder}\n"
        rows = "".join(f"- `{file.name}`: {sentence(file)}\n" for file in files)
        lines.append(f"{title}\n{rows}")
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
