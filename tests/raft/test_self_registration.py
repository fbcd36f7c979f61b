"""A node that takes over the id of a voter must find out whether that voter is running."""

from __future__ import annotations

import pytest

from kpybroker.raft.duties.fetching import WAIT_MS
from kpybroker.raft.duties.self_registration import LOOK_S, SLACK_MS, fetches


@pytest.mark.parametrize(
    ("idle_ms", "does"),
    [
        (0, True),
        (WAIT_MS, True),
        (2 * WAIT_MS, True),
        (2 * WAIT_MS + 1, None),
        (1000 * LOOK_S - SLACK_MS, False),
        (1000 * LOOK_S - 1, False),
        (1000 * LOOK_S + 1, False),
        (None, False),
    ],
)
def test_a_running_voter_fetches_often(idle_ms: int | None, does: bool | None) -> None:
    """Clocks count whole milliseconds, which must not make a stopped voter appear to be running. For a slow voter, the
    result is None."""
    assert fetches(idle_ms) is does
