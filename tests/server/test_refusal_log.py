"""A limited number of refusals is logged per minute, for each address and in total. The others are counted."""

from __future__ import annotations

import logging

import pytest

from kpybroker.server.connections.refusal_log import HOSTS_MAX, LINE_MAX, LINES, LINES_PER_HOST, MINUTE_S, RefusalLog
from kpybroker.server.node import Node
from tests.server.line import line
from tests.server.test_connection import BAD_FRAMES
from tests.server.virtual import Dial, run_virtually


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [
        record.getMessage() for record in caplog.records if record.name == "kpybroker.server.connections.refusal_log"
    ]
    caplog.clear()
    return found


def test_lines_per_address_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    refusals = RefusalLog(0.0)
    for number in range(LINES_PER_HOST + 7):
        refusals.tell("10.0.0.1", "number %d", number)
    refusals.tell("10.0.0.2", "another")
    assert lines(caplog) == [*(f"number {number}" for number in range(LINES_PER_HOST)), "another"]
    refusals.look(MINUTE_S - 1)
    assert lines(caplog) == []
    refusals.look(MINUTE_S)
    assert lines(caplog) == [
        "7 more connections or frames were refused within 60 s, from 1 addresses, among them 10.0.0.1"
    ]
    refusals.tell("10.0.0.1", "again")
    refusals.look(MINUTE_S * 2)
    assert lines(caplog) == ["again"]


def test_text_of_a_client_stays_on_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    refusals = RefusalLog(0.0)
    refusals.tell("10.0.0.1", "the session of %s has ended", "User:x\n2026-01-01 ERROR \x1b[31mforged\u202e")
    refusals.tell("10.0.0.1", "%s", "x" * 100_000)
    first, second = lines(caplog)
    assert first == r"the session of User:x\n2026-01-01 ERROR \x1b[31mforged\u202e has ended"
    assert len(second) == LINE_MAX + len("...")


def test_lines_in_total_are_limited_and_the_table_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    refusals = RefusalLog(0.0)
    for number in range(3 * HOSTS_MAX):
        refusals.tell(f"host {number}", "refused")
    assert lines(caplog) == ["refused"] * LINES
    assert len(refusals.by_host) <= HOSTS_MAX
    assert len(refusals.untold_hosts) == HOSTS_MAX
    refusals.sum_up()
    (line,) = lines(caplog)
    assert line.startswith(f"{3 * HOSTS_MAX - LINES} more connections or frames were refused within 60 s, from 1000 ")
    assert "addresses or more" in line


def test_bad_frames_are_all_counted_and_few_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        for _ in range(100):
            one = await line(node)
            one.send(BAD_FRAMES["negative"])
        await dial("last")
        assert node.server.metrics.frames_refused == 100
        assert len(lines(caplog)) == LINES_PER_HOST
        await node.server.stop()
        (summed_up,) = lines(caplog)
        assert summed_up.startswith("95 more")

    with caplog.at_level(logging.WARNING, logger="kpybroker"):
        run_virtually(scenario)
