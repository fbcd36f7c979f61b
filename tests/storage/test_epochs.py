"""LeaderEpochs returns the same results as a list with the epoch of every offset."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kpybroker.errors import Damage
from kpybroker.storage.files.epochs import LeaderEpochs
from tests.storage.workshop import WORLD

runs = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=8)
some = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def filled(path: Path, of: list[tuple[int, int]]) -> tuple[LeaderEpochs, list[int]]:
    """Leader epochs, and a list with the epoch of every offset. They are built from pairs: the number by which the
    epoch increases, and the number of offsets of that epoch."""
    (path / "leader-epoch-checkpoint").unlink(missing_ok=True)
    epochs = LeaderEpochs(WORLD.disk, str(path))
    by_offset: list[int] = []
    epoch = -1
    for further, count in of:
        epoch += further
        epochs.assign(epoch, len(by_offset))
        by_offset += [epoch] * count
    return epochs, by_offset


@given(runs, st.integers(0, 30), st.integers(0, 30))
@some
def test_epochs_are_those_of_the_offsets(tmp_path: Path, of: list[tuple[int, int]], end: int, start: int) -> None:
    epochs, by_offset = filled(tmp_path, of)
    end = min(end, len(by_offset))
    start = min(start, end)
    epochs.cut_end(end)
    epochs.cut_start(start)
    kept = by_offset[start:end]
    for offset, epoch in enumerate(kept, start):
        assert epochs.epoch_at(offset) == epoch
    latest = max(kept, default=-1)
    for epoch in set(kept):
        last = max(offset for offset, one in enumerate(kept, start) if one == epoch)
        assert epochs.end_of(epoch, end) == (epoch, end if epoch == latest else last + 1)
    assert epochs.end_of(latest + 1, end)[0] in (-1, latest + 1)
    again = LeaderEpochs(WORLD.disk, str(tmp_path))
    again.load()
    assert again.entries == epochs.entries


def test_without_an_epoch_there_is_no_file(tmp_path: Path) -> None:
    """All epochs are unknown, and truncation has no effect."""
    epochs, _ = filled(tmp_path, [])
    epochs.cut_end(0)
    epochs.cut_start(0)
    assert (epochs.entries, epochs.latest, epochs.epoch_at(0), epochs.end_of(0, 0)) == ([], -1, -1, (-1, -1))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_epoch_ended_where_the_next_one_began(tmp_path: Path) -> None:
    epochs, _ = filled(tmp_path, [(2, 5), (3, 5)])
    assert epochs.entries == [(1, 0), (4, 5)]
    assert epochs.end_of(0, 10) == (0, 0)
    assert epochs.end_of(3, 10) == (1, 5)
    assert epochs.end_of(4, 10) == (4, 10)
    assert epochs.end_of(5, 10) == (-1, -1)
    assert epochs.end_of(-1, 10) == (-1, -1)


@pytest.mark.parametrize("content", ["1\n0\n", "0\n2\n0 0\n", "0\n1\n0 x\n", "0\n1\n0 0", "\xff"])
def test_an_invalid_file_is_damage(tmp_path: Path, content: str) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_bytes(content.encode("latin-1"))
    with pytest.raises(Damage, match="leader-epoch-checkpoint"):
        LeaderEpochs(WORLD.disk, str(tmp_path)).load()
