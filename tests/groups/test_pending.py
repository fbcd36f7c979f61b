"""Compares offset commits in transactions with a simple model: of all committed offsets, the offset that was written
last counts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode
from kpybroker.groups.ground.commands import CommitOffsets, EndTransaction, FetchOffsets, PartitionCommit
from kpybroker.groups.machine import GroupMachine
from kpybroker.machine.contract import Moment, Stored
from kpybroker.wire.records.markers import Marker
from tests.groups.stage import Stage

PLACES = st.integers(0, 2)
STEPS = st.lists(
    st.tuples(st.just("plain"), PLACES, st.just(0))
    | st.tuples(st.just("within"), PLACES, st.integers(1, 3))
    | st.tuples(st.sampled_from(["commit", "abort"]), st.just(0), st.integers(1, 3)),
    max_size=30,
)


def command(what: str, place: int, producer: int, number: int) -> CommitOffsets | EndTransaction:
    if what in ("commit", "abort"):
        return EndTransaction(Marker(producer, 0, 0, commits=what == "commit"))
    commits = [("t", bytes(16), [PartitionCommit(place, number, -1, "")])]
    transaction = (producer, 0) if what == "within" else None
    return CommitOffsets("g", "", None, -1, -1, commits, False, transaction)


def plainly(steps: list[tuple[str, int, int]]) -> dict[int, int | ErrorCode]:
    """For each partition, the step whose commit counts, and whether an open transaction may still change it."""
    standing: dict[int, int | ErrorCode] = {}
    fates = {}
    for number, (what, _, producer) in reversed(list(enumerate(steps))):
        if what in ("commit", "abort"):
            fates[producer] = what
        elif what == "within":
            fates[number + 1000] = fates.get(producer, "open")
    for number, (what, place, _) in enumerate(steps):
        if what == "plain" or (what == "within" and fates[number + 1000] == "commit"):
            standing[place] = number
    undecided = [at for number, (_, at, _) in enumerate(steps) if fates.get(number + 1000) == "open"]
    return standing | dict.fromkeys(undecided, ErrorCode.UNSTABLE_OFFSET_COMMIT)


def shown(machine: GroupMachine, now_ms: int) -> dict[int, int | ErrorCode]:
    asked = FetchOffsets("g", [("t", [0, 1, 2])], require_stable=True)
    ((_, answer),) = machine.decide(1, asked, Moment(now_ms, now_ms)).answers
    return {
        place: found if isinstance(found, ErrorCode) else found.offset
        for _, offsets in answer
        for place, found in offsets
        if found is not None
    }


@given(STEPS)
@settings(deadline=None, max_examples=100)
def test_the_last_written_of_the_committed_offsets_counts(steps: list[tuple[str, int, int]]) -> None:
    stage = Stage()
    for number, step in enumerate(steps):
        stage.ask(command(*step, number))
    assert shown(stage.machine, stage.now_ms) == plainly(steps)
    again = GroupMachine(stage.settings, stage.new_id, lambda: stage.image)
    for record in stage.log:
        again.apply(Stored(record.key, record.value, record.timestamp_ms, record.offset, None, record.transaction))
    assert shown(again, stage.now_ms) == plainly(steps)
