"""Tests that clients print exactly the errors in docs/troubleshooting.md."""

import re
from pathlib import Path

import pytest

from compat_tests import troubles
from tests.pages import pattern_of

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "troubleshooting.md").read_text()
TABLES = dict(re.findall(r"^<!-- trouble: (\w+) -->\n((?:\|.*\n)+)", PAGE, re.MULTILINE))
CELLS = [
    (name, client, cell)
    for name, table in TABLES.items()
    for client, cell in re.findall(r"^\| ([\w-]+) \| (.*) \|$", table, re.MULTILINE)
    if client != "client"
]
QUOTED = re.compile(r"(`+)(.+?)\1")
AROUND = ("poll", "produce", "start", "None", "{}", "groups describe")
"""Names and values of the client's interface, in addition to its output."""


def test_every_situation_is_on_the_page() -> None:
    assert list(TABLES) == [situation.__name__ for situation in troubles.SITUATIONS]


@pytest.mark.full  # clients need a long time to give up: four minutes in all
@pytest.mark.parametrize(("name", "client", "cell"), CELLS, ids=[f"{name}-{client}" for name, client, _ in CELLS])
def test_the_errors_are_printed(name: str, client: str, cell: str, target_name: str) -> None:
    if target_name != "kpybroker":
        return  # each broker has other settings
    (situation,) = (each for each in troubles.SITUATIONS if each.__name__ == name)
    said = "\n".join(troubles.distinct(situation(client)))
    quotes = [found[2].strip().replace(r"\|", "|") for found in QUOTED.finditer(cell)]
    for quote in quotes:
        if quote not in AROUND and not re.fullmatch(r"[a-z._]+(\(\d\))?", quote):
            assert re.search(pattern_of(quote), said), f"{quote}\nis not in\n{said}"
