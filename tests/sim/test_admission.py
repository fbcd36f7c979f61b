"""Tests of the invariants of logins and rights: each violation is reported as one sentence, and responses of a stale
broker are not violations."""

from __future__ import annotations

import pytest

from kpybroker.sim.actors.catalog import with_actors
from kpybroker.sim.cluster.setup import setup_of
from kpybroker.sim.laws.admission import Admission, Shown
from kpybroker.sim.simulation import Simulation
from kpybroker.sim.world.history import History

pytestmark = pytest.mark.slow

HERE, LATER = object(), object()
"""Two processes of a broker."""


@pytest.fixture
def history() -> History:
    return History(lambda: 0.0)


@pytest.mark.parametrize(
    ("process", "is_valid", "refusal", "sentence"),
    [
        (HERE, True, None, None),
        (HERE, False, "wrong", None),
        (HERE, False, None, "was let in, though the user was removed"),
        (HERE, True, "wrong", "refused by a broker that knows"),
        (LATER, False, None, None),
        (LATER, True, "wrong", None),
    ],
)
def test_a_broker_that_knows_of_a_change_obeys_it(
    history: History, process: object, is_valid: bool, refusal: str | None, sentence: str | None
) -> None:
    law = Admission(history)
    law.login("ann", refusal, shown=Shown(HERE), process=process, is_valid=is_valid, why="the user was removed")
    assert [sentence in breach for breach in history.breaches] == ([True] if sentence else [])  # type: ignore[operator]


@pytest.mark.parametrize(
    ("process", "is_allowed", "was_denied", "ok", "sentence"),
    [
        (HERE, True, False, True, None),
        (HERE, True, False, False, None),
        (HERE, False, True, False, None),
        (HERE, True, True, False, "was denied by a broker that knows"),
        (HERE, False, False, True, "was served by a broker that knows"),
        (LATER, False, False, True, None),
    ],
)
def test_a_broker_that_knows_the_acls_decides_by_them(
    history: History, process: object, is_allowed: bool, was_denied: bool, ok: bool, sentence: str | None
) -> None:
    law = Admission(history)
    law.judged("WRITE", shown=Shown(HERE), process=process, is_allowed=is_allowed, was_denied=was_denied, ok=ok)
    assert [sentence in breach for breach in history.breaches] == ([True] if sentence else [])  # type: ignore[operator]


def test_what_no_broker_may_do(history: History) -> None:
    law = Admission(history)
    law.never("a write", was_served=False, why="no ACL allows it")
    law.session("ann", sent_s=2.0, ended_s=1.0, was_served=False)
    law.session("ann", sent_s=1.0, ended_s=2.0, was_served=True)
    law.same_principal("ann", "bob", was_let_in=False)
    law.own_rights("ann", was_denied=False)
    law.topics("ann", {"a"}, {"a", "b"})
    assert history.breaches == []
    law.never("a write", was_served=True, why="no ACL allows it")
    law.session("ann", sent_s=2.0, ended_s=1.0, was_served=True)
    law.same_principal("ann", "bob", was_let_in=True)
    law.own_rights("ann", was_denied=True)
    law.topics("ann", {"a", "c"}, {"a", "b"})
    sentences = ("no ACL allows", "1.000 s after its session", "renewed as bob", "by its token before", "shown ['c']")
    assert [sentence in breach for sentence, breach in zip(sentences, history.breaches, strict=True)] == [True] * 5


@pytest.mark.parametrize("brokers", [1, 3])
def test_nobody_gets_what_they_may_not_have(brokers: int) -> None:
    """The run contains attempts to violate each invariant."""
    outcome = Simulation(with_actors(setup_of(3, brokers=brokers), ("principals",), only=True)).run()
    assert outcome.breaches == []
    for what in ("logins", "refusals", "rights", "ended sessions", "changes of principal", "metadata", "new logins"):
        assert outcome.counts[what if what == "logins" else f"{what} probed"] > 0
    assert outcome.counts["logins renewed"] > 0
