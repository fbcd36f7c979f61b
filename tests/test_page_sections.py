"""Tests that the marked sections of pages match the project: tables, figures, and program output."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import fixture, laptop_groups
from bench.__main__ import FAMILIES
from bench.measure import Measure
from bench.report import HEADINGS
from oracle.jars import KAFKA_VERSION
from spark_examples import flights_demo
from spark_examples.flights_table import flights, totals_of

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/benchmarks.md", "docs/protocol.md", "docs/spark.md")
TEXTS = {page: (ROOT / page).read_text() for page in PAGES}
SECTIONS = dict(re.findall(r"<!-- (\w+) -->\n(.*?)<!-- /\1 -->", "".join(TEXTS.values()), re.DOTALL))
TABLES = ("compiled", "bench")
"""The tables of `python -m bench`: of the compiled build, and of all loads."""
SPEED_ROWS = 10
VERDICTS = ("goal", "held", "", "SHORT")
ROUNDING = 0.006
"""Ratios are shown with two digits."""
WAIT_S = 120


def table_of(text: str) -> list[list[str]]:
    """The rows of the Markdown table in a text, each as its cells; the heading comes first."""
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for number, row in enumerate(rows) if number != 1]


def printed_by(*module: str) -> str:
    command = [sys.executable, "-m", *module]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S, cwd=ROOT).stdout


def test_every_mark_encloses_content() -> None:
    opened = [mark for text in TEXTS.values() for mark in re.findall(r"<!-- (/?\w+) -->", text)]
    assert opened == [mark for name in SECTIONS for mark in (name, f"/{name}")]
    tested = {"api", "clients", "demo", "figures", "fixtures", "laptop", "security", "speed", *TABLES}
    assert set(SECTIONS) == tested, "one that has no test"
    assert all(text.strip() for text in SECTIONS.values())


def test_the_api_table_matches_the_served_apis() -> None:
    assert printed_by("kpybroker", "api", "--markdown") in SECTIONS["api"]


@pytest.mark.slow
def test_the_table_of_clients_matches_the_tests() -> None:
    """The versions are those of the last complete run; names, combinations and numbers of tests must be current."""
    said, found = table_of(SECTIONS["clients"]), table_of(printed_by("compat_tests.versions"))
    assert [[name, how, count] for name, _, how, count in said] == [[name, how, count] for name, _, how, count in found]
    assert all(re.match(r"\d+\.\d+", version) for _, version, *_ in said[1:])
    assert f"Apache Kafka {KAFKA_VERSION}" in SECTIONS["clients"]


def figure(text: str) -> float:
    return float(text.split(" ")[0].replace(",", ""))


@pytest.mark.parametrize("table", TABLES)
def test_the_figures_match_the_current_loads_and_floors(table: str) -> None:
    heading, *rows = table_of(SECTIONS[table])
    assert tuple(heading) == HEADINGS
    assert rows
    cases = [case.measures for family in FAMILIES for case in family.cases()]
    case: Sequence[Measure] = ()
    for label, unit, ours, _, ratio, floor, goal, verdict in rows:
        if not label.startswith("…"):  # which continues the load of the previous row
            case = next((known for known in cases if label in [measure.label for measure in known]), ())
        measure = next((known for known in case if (known.label, known.unit) == (label, unit)), None)
        assert measure is not None, f"no load measures {label!r} in {unit!r} here"
        shown = ["–" if bound is None else f"{bound:g}" for bound in (measure.floor, measure.goal)]
        assert [floor, goal] == shown, label
        judged = ours if measure.absolute else ratio
        assert verdict in {verdict_of(measure, figure(judged) + off) for off in (-ROUNDING, 0, ROUNDING)}, label


def test_the_readme_shows_rows_of_the_whole_table() -> None:
    heading, *rows = table_of(SECTIONS["speed"])
    columns = len(heading)
    assert tuple(heading) == HEADINGS[:columns]
    assert len(rows) == SPEED_ROWS
    whole = {row[0]: row[:columns] for table in reversed(TABLES) for row in table_of(SECTIONS[table])}
    assert all(row == whole[row[0]] for row in rows), "the rows of the compiled build, where it was measured"


def test_the_readme_shows_medians_of_the_fixtures() -> None:
    """Each figure of the README, with its unit, is the median of a row of the page."""
    medians = {(figure.split(" ")[0], unit) for _, unit, figure in table_of(SECTIONS["fixtures"])[1:]}
    shown = re.findall(r"([\d.]+) (s|ms|MB)\b", SECTIONS["figures"])
    assert len(shown) > 3
    assert set(shown) <= medians


def test_the_fixtures_are_measured_in_the_current_way() -> None:
    said = [(what, unit) for what, unit, _ in table_of(SECTIONS["fixtures"])[1:]]
    assert said == fixture.rows()
    for word in (r"\d{4}-\d\d-\d\d", r"\d+ cores", "CPython 3"):
        assert re.search(word, SECTIONS["fixtures"]), word


def test_the_waiting_times_of_a_laptop_are_measured_in_the_current_way() -> None:
    (_, _, *brokers), *rows = table_of(SECTIONS["laptop"])
    assert tuple(brokers) == laptop_groups.BROKERS
    assert tuple(what for what, *_ in rows) == laptop_groups.ROWS
    assert re.search(r"\d{4}-\d\d-\d\d", SECTIONS["laptop"])


def verdict_of(measure: Measure, value: float) -> str:
    if measure.goal is not None and measure.reaches(value, measure.goal):
        return "goal"
    if measure.floor is None:
        return ""
    return "held" if measure.reaches(value, measure.floor) else "SHORT"


@pytest.mark.parametrize(
    "word", [r"\d{4}-\d\d-\d\d", r"\d+ (cores|×)", r"\d+ GB", "CPython 3", re.escape(KAFKA_VERSION)]
)
@pytest.mark.parametrize("table", TABLES)
def test_the_figures_state_their_date_and_machine(table: str, word: str) -> None:
    assert re.search(word, SECTIONS[table])


@pytest.mark.slow
def test_the_demo_shows_the_totals_of_the_flights() -> None:
    """The table is compared line by line with the demo's table of the package's own totals; the page omits some
    lines."""
    with flights_demo.console.capture() as capture:
        flights_demo.show(totals_of(flights()))
    printed = [line.rstrip() for line in capture.get().splitlines()]
    rows = [line for line in SECTIONS["demo"].splitlines() if line.startswith("│") and "..." not in line]
    assert len(rows) > 3
    assert [line for line in printed if line in rows] == rows
    count = len(flights())
    assert f"{count:,} flights went through." in SECTIONS["demo"]
    assert f"{count}/{count}" in SECTIONS["demo"]
