"""A log directory is formatted as by Kafka, can only be opened by its own node, and is not changed by a refusal."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kpybroker.errors import ConfigError
from kpybroker.storage.dirs.directory import Directory, Format, decode_id, encode_id, open_directories, random_id
from kpybroker.storage.dirs.formatting import format_directory, read_bootstrap
from kpybroker.wire.directory_ids import is_reserved
from kpybroker.wire.records.batch import HEADER_BYTES, header_at
from kpybroker.world.real import RealWorld

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
FEATURES = {
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}
VOTER = ("CONTROLLER", "127.0.0.1", 19493)
DIRECTORY_ID = decode_id("_SxAiFjWQ3qCp-YBk6xYKQ")
GOLDEN = Path(__file__).parent / "formatted-4.3.1.json"
"""The files that `kafka-storage format --standalone` of Apache Kafka 4.3.1 wrote, in base64."""


@pytest.fixture
def world() -> Iterator[RealWorld]:
    made = RealWorld(seed=1)
    yield made
    made.close()


class Opener:
    """Opens directories of the test, and releases the opened directories."""

    def __init__(self, world: RealWorld, root: Path) -> None:
        self._world = world
        self._root = root
        self._opened: list[Directory] = []

    def __call__(self, *names: str, node_id: int = 1, cluster_id: str | None = None) -> list[Directory]:
        paths = [str(self._root / name) for name in names]
        found = open_directories(self._world, paths, node_id, Format(FEATURES, VOTER, cluster_id))
        self._opened += found
        return found

    def close(self) -> None:
        for directory in self._opened:
            self._world.disk.close(directory.lock)
        self._opened.clear()


@pytest.fixture
def opening(world: RealWorld, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(world, tmp_path)
    yield opener
    opener.close()


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def timeless(data: bytes) -> bytes:
    """A snapshot without its timestamps, and without the CRCs that depend on them."""
    out, at = bytearray(data), 0
    while at < len(out):
        size = header_at(out, at)[1]
        out[at + 17 : at + 21] = bytes(4)
        out[at + 27 : at + 43] = bytes(16)
        if struct.unpack_from(">h", out, at + 21)[0] & 0x20 and out[at + HEADER_BYTES + 8] == 3:
            timestamp_at = at + HEADER_BYTES + 12  # after the version of a SnapshotHeaderRecord
            out[timestamp_at : timestamp_at + 8] = bytes(8)
        at += size
    return bytes(out)


def test_formatting_writes_the_same_files_as_kafka(world: RealWorld, tmp_path: Path) -> None:
    golden = {name: base64.b64decode(text) for name, text in json.loads(GOLDEN.read_text()).items()}
    wanted = Format(FEATURES, VOTER)
    format_directory(
        world,
        str(tmp_path),
        node_id=1,
        cluster_id=CLUSTER,
        directory_id=DIRECTORY_ID,
        wanted=wanted,
        has_metadata=True,
    )
    ours = files_of(tmp_path)
    assert ours.keys() == golden.keys()
    for name, theirs in golden.items():
        if name == "meta.properties":
            lines = [line for line in theirs.decode().splitlines() if not line.startswith("#")]
            assert sorted(ours[name].decode().splitlines()) == sorted(lines)
        else:
            assert timeless(ours[name]) == timeless(theirs), name


def test_bootstrap_records_are_read(world: RealWorld, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text())
    (tmp_path / "bootstrap.checkpoint").write_bytes(base64.b64decode(golden["bootstrap.checkpoint"]))
    records = read_bootstrap(world, str(tmp_path))
    assert records is not None
    assert {record.name: record.feature_level for record in records} == FEATURES


def test_a_formatted_directory_opens_again(tmp_path: Path, opening: Opener) -> None:
    made = opening("a", "b")
    before = files_of(tmp_path)
    same = [(d.path, d.directory_id, d.cluster_id) for d in made]
    assert made[0].cluster_id == made[1].cluster_id
    assert made[0].directory_id != made[1].directory_id
    assert (tmp_path / "a/__cluster_metadata-0").is_dir()
    assert not (tmp_path / "b/__cluster_metadata-0").exists()
    opening.close()
    again = opening("a", "b")
    assert [(d.path, d.directory_id, d.cluster_id) for d in again] == same
    assert files_of(tmp_path) == before


def test_a_new_disk_joins_the_existing_directories(opening: Opener) -> None:
    first = opening("a")
    cluster_id = first[0].cluster_id
    opening.close()
    assert [directory.cluster_id for directory in opening("a", "b")] == [cluster_id, cluster_id]


def test_another_broker_of_the_machine_may_have_its_directory_inside(opening: Opener) -> None:
    """The brokers of `serve --brokers` start at the same time, so the inner directory may be the first."""
    (inner,) = opening("a/broker.2", node_id=2, cluster_id=CLUSTER)
    (outer,) = opening("a", cluster_id=CLUSTER)
    assert (inner.node_id, outer.node_id) == (2, 1)
    (outer_again,) = opening("b", cluster_id=CLUSTER)
    (inner_again,) = opening("b/broker.2", node_id=2, cluster_id=CLUSTER)
    assert (inner_again.node_id, outer_again.node_id) == (2, 1)


def test_a_half_formatted_directory_is_formatted_again(tmp_path: Path, opening: Opener) -> None:
    opening("a")
    opening.close()
    (tmp_path / "a/meta.properties").unlink()
    assert opening("a")[0].node_id == 1


def test_kafkas_own_directory_opens(tmp_path: Path, opening: Opener) -> None:
    for name, text in json.loads(GOLDEN.read_text()).items():
        path = tmp_path / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(text))
    opened = opening("a")[0]
    assert (opened.cluster_id, opened.directory_id) == (CLUSTER, DIRECTORY_ID)


def edit(old: str, new: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        meta = path / "meta.properties"
        meta.write_text(meta.read_text().replace(old, new))

    return change


def lose_meta(path: Path) -> None:
    (path / "meta.properties").unlink()
    (path / "orders-0").mkdir()
    (path / "orders-0/00000000000000000000.log").write_bytes(b"precious")


def lose_meta_after_first_records(path: Path) -> None:
    (path / "meta.properties").unlink()
    (path / "__cluster_metadata-0/00000000000000000000.log").write_bytes(b"precious")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit("version=1", "version=2"), ["meta.properties", "version 2", "version 1"]),
        (edit("node.id=1", "node.id=8"), ["node 8", "node 1", "node.id=8"]),
        (edit("cluster.id=", "cluster.id=X"), [f"X{CLUSTER}", CLUSTER, "log.dirs"]),
        (edit("cluster.id", "other.id"), ["lacks cluster.id", "restore"]),
        (edit("node.id=1\n", ""), ["no valid node.id", "restore"]),
        (edit("node.id=1", "node.id=two"), ["no valid node.id ('two')", "restore"]),
        (edit("directory.id=", "directory.id=!"), ["directory.id", "not a uuid", "restore"]),
        (lose_meta, ["orders-0", "meta.properties", "restore"]),
        (lose_meta_after_first_records, ["__cluster_metadata-0", "meta.properties", "restore"]),
    ],
    ids=[
        "version",
        "node",
        "cluster",
        "no cluster",
        "no node",
        "no number",
        "directory id",
        "partitions",
        "metadata log",
    ],
)
def test_a_directory_of_another_node_is_refused_and_unchanged(
    tmp_path: Path,
    opening: Opener,
    change: Callable[[Path], None],
    words: list[str],
) -> None:
    opening("a", cluster_id=CLUSTER)
    opening.close()
    change(tmp_path / "a")
    before = files_of(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        opening("a", cluster_id=CLUSTER)
    assert all(word in str(refusal.value) for word in [*words, str(tmp_path / "a")]), refusal.value
    assert files_of(tmp_path) == before


def test_directories_of_two_clusters_are_refused(opening: Opener) -> None:
    opening("a")
    opening.close()
    opening("b")
    opening.close()
    with pytest.raises(ConfigError, match=r"/b belongs to cluster .*choose another"):
        opening("a", "b")


def test_a_copied_directory_is_refused(tmp_path: Path, opening: Opener) -> None:
    opening("a")
    opening.close()
    (tmp_path / "b").mkdir()
    (tmp_path / "b/meta.properties").write_text((tmp_path / "a/meta.properties").read_text())
    with pytest.raises(ConfigError, match="copies of one directory"):
        opening("a", "b")


def test_the_metadata_log_is_not_started_beside_an_old_one(tmp_path: Path, opening: Opener) -> None:
    opening("a")
    opening.close()
    with pytest.raises(ConfigError, match="the metadata log belongs there"):
        opening("new", "a")
    assert list(files_of(tmp_path / "new")) == [".lock"]


def test_a_directory_in_use_is_refused_and_the_locks_are_released(tmp_path: Path, opening: Opener) -> None:
    holding = (
        "import fcntl, sys\n"
        "lock = open(sys.argv[1], 'w')\n"
        "fcntl.lockf(lock, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    (tmp_path / "b").mkdir()
    command = [sys.executable, "-c", holding, str(tmp_path / "b/.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=r"/b is in use by another broker; stop that one"):
            opening("a", "b")
        other.communicate()
    assert len(opening("a", "b")) == 2


def test_an_unwritable_directory_is_refused(tmp_path: Path, opening: Opener) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write to .*choose a writable one with log.dirs"):
        opening("file/a")


def test_ids_are_random_unreserved_uuids(world: RealWorld) -> None:
    ids = [random_id(world.random) for _ in range(300)]
    assert len(set(ids)) == 300
    for raw in ids:
        assert raw[6] >> 4 == 4
        assert raw[8] >> 6 == 2
        assert not is_reserved(raw)
        assert not encode_id(raw).startswith("-")
        assert decode_id(encode_id(raw)) == raw
    for text in ["", "short", "!" * 22, encode_id(bytes(17))]:
        with pytest.raises(ValueError, match="not a uuid"):
            decode_id(text)


def test_a_directory_with_other_content_is_refused(tmp_path: Path) -> None:
    """For example, a broker must not write its files to a home directory."""
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(ConfigError, match=r"not empty \(README.md\).*choose an empty"):
        open_directories(RealWorld(), [str(tmp_path)], 1, Format({"metadata.version": 30}, None))
    assert sorted(f.name for f in tmp_path.iterdir()) == [".lock", "README.md"]
