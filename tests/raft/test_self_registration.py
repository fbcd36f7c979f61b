"""A node that takes an id over: does the voter that had it run?"""

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
def test_a_voter_fetches_as_long_as_it_runs(idle_ms: int | None, does: bool | None) -> None:
    """A clock that counts whole ms does not make a stopped one run, and a slow one is neither."""
    assert fetches(idle_ms) is does
