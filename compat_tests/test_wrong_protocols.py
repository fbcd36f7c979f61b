"""Tests that clients print, and kpybroker logs, exactly the lines in the section "Another protocol, or a certificate
that is not trusted" of docs/troubleshooting.md."""

import re
from pathlib import Path

import pytest

from compat_tests import wrong_protocols
from tests.pages import pattern_of

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "troubleshooting.md").read_text()
TABLES = dict(re.findall(r"^<!-- wrong protocol: (\w+) -->\n((?:\|.*\n)+)", PAGE, re.MULTILINE))
QUOTED = re.compile(r"(`+)(.+?)\1")


def quotes(table: str) -> dict[str, list[str]]:
    """The quoted lines on the page, by the program that prints them."""
    rows = re.findall(r"^\| ([\w' -]+) \| (.*) \|$", table, re.MULTILINE)
    return {
        who: [found[2].strip().replace(r"\|", "|") for found in QUOTED.finditer(cell)]
        for who, cell in rows
        if who != "client or broker"
    }


def test_every_situation_and_everybody_is_on_the_page() -> None:
    assert list(TABLES) == list(wrong_protocols.SITUATIONS)
    for name, table in TABLES.items():
        assert list(quotes(table)) == [*wrong_protocols.CLIENTS, wrong_protocols.BROKER], name
        assert all(quotes(table).values()), name


@pytest.mark.full  # kafka-python takes 30 seconds to give up
@pytest.mark.parametrize("name", wrong_protocols.SITUATIONS)
def test_it_is_said(name: str, target_name: str, tmp_path: Path) -> None:
    said = wrong_protocols.played(target_name, name, tmp_path)
    for who, quoted in quotes(TABLES[name]).items():
        if who == wrong_protocols.BROKER and target_name != "kpybroker":
            continue  # Apache Kafka logs another text
        if (name, who, target_name) == ("plain_to_tls", "Java", "kafka"):
            continue  # Apache Kafka responds with an alert, which its own client interprets as a size of 352 MB
        for quote in quoted:
            assert re.search(pattern_of(quote), said[who]), f"{who}: {quote}\nis not in\n{said[who]}"
    if target_name == "kpybroker":
        refusals = [line for line in said[wrong_protocols.BROKER].splitlines() if "refusal_log" in line]
        assert len(refusals) <= 2, "every client for the same reason, or one of two"
