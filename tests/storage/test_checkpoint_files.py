"""Text files are written in the same format as by Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kpybroker.errors import Damage
from kpybroker.storage.files.checkpoint_files import read_offsets, read_topic_id, write_offsets, write_topic_id
from tests.storage.workshop import WORLD

DISK = WORLD.disk
names = st.text("abcXYZ019._-", min_size=1, max_size=20)
offsets = st.dictionaries(st.tuples(names, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), max_size=8)
some = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(offsets)
@some
def test_offsets_are_read_back(tmp_path: Path, of: dict[tuple[str, int], int]) -> None:
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    write_offsets(DISK, path, of, sync=False)
    assert read_offsets(DISK, path) == of


@given(offsets, st.data())
@some
def test_a_torn_file_is_damage(tmp_path: Path, of: dict[tuple[str, int], int], data: st.DataObject) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    write_offsets(DISK, str(path), of, sync=False)
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(1, len(content) - 1))])
    with pytest.raises(Damage, match="replication-offset-checkpoint"):
        read_offsets(DISK, str(path))


def test_no_file_and_an_empty_file_have_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "log-start-offset-checkpoint"
    assert read_offsets(DISK, str(path)) == {}
    path.write_bytes(b"")
    assert read_offsets(DISK, str(path)) == {}


def test_rows_are_kafkas(tmp_path: Path) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    write_offsets(DISK, str(path), {("small", 0): 18000, ("empty", 1): 0}, sync=True)
    assert path.read_text() == "0\n2\nsmall 0 18000\nempty 1 0\n"


@given(st.binary(min_size=16, max_size=16), st.integers(0, 42))
@some
def test_a_topic_id_is_read_back_or_was_never_complete(tmp_path: Path, topic_id: bytes, size: int) -> None:
    write_topic_id(DISK, str(tmp_path), topic_id)
    assert read_topic_id(DISK, str(tmp_path)) == topic_id
    file = tmp_path / "partition.metadata"
    file.write_bytes(file.read_bytes()[:size])
    assert read_topic_id(DISK, str(tmp_path)) is None


@pytest.mark.parametrize("content", ["version: 1\ntopic_id: 9uqDAB5RRrqjt4Hi89KySA", "x" * 43, "\xff" * 43])
def test_other_content_is_damage(tmp_path: Path, content: str) -> None:
    (tmp_path / "partition.metadata").write_bytes(content.encode("latin-1"))
    with pytest.raises(Damage, match=r"partition\.metadata"):
        read_topic_id(DISK, str(tmp_path))
