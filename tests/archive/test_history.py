"""Tests of manifests in a local folder: each is committed once, read completely or refused, and never replaced."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from kpybroker.archive.history import ArchiveHistory, commit, load, name_of, new_run
from kpybroker.archive.manifest import NotAManifest, decode, encode
from kpybroker.archive.planning import Range
from kpybroker.archive.store import LocalStore, absolute
from kpybroker.client.client import CommandFailed
from kpybroker.errors import ConfigError
from tests.archive.writing import CLUSTER, TOPIC_ID, manifest_of, write

ORDERS = ("orders", 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "an archive"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(absolute(str(root)))


@pytest.fixture
def three(store: LocalStore, root: Path) -> ArchiveHistory:
    history = load(store)
    for number, at in enumerate([Range(5, 5, 10), Range(10, 12, 20), Range(20, 25, 25)]):
        history = write(store, root, history, {ORDERS: at}, f"run-{number}")
    return history


def test_a_committed_manifest_is_read(store: LocalStore, three: ArchiveHistory) -> None:
    assert load(store) == three
    assert three.ends() == {ORDERS: 25}
    spans = [span for _, span in three.spans()]
    assert [(span.records, span.gaps, span.lost) for span in spans] == [(5, 0, 0), (8, 0, 2), (0, 0, 5)]
    assert three.topic_ids == {"orders": TOPIC_ID}


def test_a_missing_folder_is_an_empty_archive(store: LocalStore, root: Path) -> None:
    assert load(store) == ArchiveHistory()
    assert not root.exists()


def test_a_folder_with_other_content_is_refused(store: LocalStore, root: Path) -> None:
    root.mkdir()
    (root / "thesis.odt").touch()
    with pytest.raises(CommandFailed, match=r"is not an archive, as it has thesis\.odt"):
        load(store)
    (root / "thesis.odt").unlink()
    root.rmdir()
    root.touch()
    with pytest.raises(ConfigError, match="is a file"):
        load(store)


@pytest.mark.parametrize("where", ["", "/data/*", "a[1]", "s3a://bucket/{a,b}", "what?"])
def test_folder_names_that_spark_would_ignore_are_refused(where: str) -> None:
    with pytest.raises(ConfigError, match="folder"):
        absolute(where)


def test_a_folder_has_one_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for where in "a b%20c", f"{tmp_path}/a b%20c/", f"file:{tmp_path}/a b%20c", f"file://{tmp_path}/x/../a b%20c":
        assert absolute(where) == f"file://{tmp_path}/a b%20c"
    assert absolute("s3a://bucket/orders/") == "s3a://bucket/orders"


def test_any_truncation_or_changed_byte_is_detected(three: ArchiveHistory) -> None:
    data, _ = encode(three.manifests[1])
    assert decode(data)[0] == three.manifests[1]
    for at in range(len(data) - 1):
        with pytest.raises(NotAManifest):
            decode(data[:at])
        changed = bytearray(data)
        changed[at] ^= 1
        try:
            assert decode(bytes(changed))[0] == three.manifests[1], "only whitespace may differ"
        except NotAManifest:
            continue


def test_a_half_written_manifest_is_refused_and_left_as_it_is(
    store: LocalStore, root: Path, three: ArchiveHistory
) -> None:
    last = root / name_of(3)
    half = last.read_bytes()[:100]
    last.write_bytes(half)
    with pytest.raises(CommandFailed, match=r"0003\.json is invalid: it is incomplete.*nothing was written"):
        load(store)
    assert last.read_bytes() == half


def test_a_missing_manifest_is_named(store: LocalStore, root: Path, three: ArchiveHistory) -> None:
    (root / name_of(2)).unlink()
    with pytest.raises(CommandFailed, match=r"0002\.json is missing"):
        load(store)


def test_the_next_manifest_detects_a_replaced_one(store: LocalStore, root: Path, three: ArchiveHistory) -> None:
    """A store that checks before it writes may let two archivers commit the same number."""
    one = replace(three.manifests[1], run="another", topics=())
    (root / name_of(2)).write_bytes(encode(one)[0])
    with pytest.raises(CommandFailed, match=r"0003\.json is invalid: .*which was replaced"):
        load(store)


@pytest.mark.parametrize(
    ("ranges", "complaint"),
    [
        ({ORDERS: Range(24, 24, 30)}, "overlap the earlier ones"),
        ({ORDERS: Range(26, 26, 30)}, "leave a hole after the earlier ones"),
    ],
)
def test_ranges_follow_one_another(three: ArchiveHistory, ranges: dict[tuple[str, int], Range], complaint: str) -> None:
    data, digest = encode(manifest_of(three, ranges, "next"))
    with pytest.raises(NotAManifest, match=complaint):
        three.with_next(decode(data)[0], digest)


def test_a_manifest_that_no_round_could_write_is_refused(three: ArchiveHistory) -> None:
    part = three.manifests[1].topics[0]
    (span,) = part.spans
    (file,) = span.files
    for wrong in (
        replace(span, start=21),
        replace(span, lost_from=-1),
        replace(span, files=(replace(file, records=9),)),
        replace(span, files=(replace(file, last=20),)),
        replace(span, files=(replace(file, path="data/run=run-1/topic=orders/partition=1/part.parquet"),)),
    ):
        data, _ = encode(replace(three.manifests[1], topics=(replace(part, spans=(wrong,)),)))
        with pytest.raises(NotAManifest):
            decode(data)
    content = json.loads(encode(three.manifests[1])[0])
    content["format"] = 2
    with pytest.raises(NotAManifest, match="its format is 2"):
        decode(json.dumps(content).encode())


def test_only_one_of_many_archivers_commits(store: LocalStore, root: Path, three: ArchiveHistory) -> None:
    """All archivers planned from the same end. One of them commits a complete manifest, and the others get an error."""
    won: list[str] = []
    told: list[str] = []
    together = threading.Barrier(8)

    def archive(run: str) -> None:
        manifest = manifest_of(three, {ORDERS: Range(25, 25, 30)}, run)
        together.wait()
        try:
            commit(store, three, manifest)
            won.append(run)
        except CommandFailed as failure:
            told.append(str(failure))

    threads = [threading.Thread(target=archive, args=(f"by-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(told) == 7
    assert all("another archiver" in text for text in told)
    assert load(store).manifests[-1].run == won[0]
    assert [path.name for path in (root / "_archive").iterdir() if path.name.startswith(".")] == []


def test_another_cluster_topic_or_isolation_is_refused(three: ArchiveHistory) -> None:
    three.require(CLUSTER, {"orders": TOPIC_ID, "new": "x"}, "read_committed", "here")
    with pytest.raises(CommandFailed, match=f"here is an archive of the cluster {CLUSTER}, but this is other"):
        three.require("other", {"orders": TOPIC_ID}, "read_committed", "here")
    with pytest.raises(CommandFailed, match=r"another topic named orders.*deleted and recreated"):
        three.require(CLUSTER, {"orders": "other"}, "read_committed", "here")
    with pytest.raises(CommandFailed, match="written with read_committed"):
        three.require(CLUSTER, {"orders": TOPIC_ID}, "read_uncommitted", "here")


def test_only_folders_of_unfinished_rounds_count_as_such(store: LocalStore, root: Path, three: ArchiveHistory) -> None:
    left = root / "data" / "run=00000004-0123456789ab"
    left.mkdir()
    assert three.unfinished(store) == [left.name]
    (root / "data/raw").mkdir()
    with pytest.raises(CommandFailed, match="data/raw does not belong to an archive"):
        three.unfinished(store)


def test_rounds_without_their_manifests_are_not_unfinished_ones(
    store: LocalStore, root: Path, three: ArchiveHistory
) -> None:
    for number in range(4, 7):
        three = write(store, root, three, {ORDERS: Range(21 + number, 21 + number, 22 + number)}, new_run(number))
    for number in (5, 6):
        (root / name_of(number)).unlink()
    with pytest.raises(CommandFailed, match="after manifest 5, but the newest in _archive is 4: restore"):
        load(store).unfinished(store)
    shutil.rmtree(root / "_archive")
    with pytest.raises(CommandFailed, match="but the newest in _archive is 0: restore"):
        load(store).unfinished(store)


def test_a_manifest_number_out_of_range_is_refused(store: LocalStore, root: Path, three: ArchiveHistory) -> None:
    (root / name_of(0)).touch()
    with pytest.raises(CommandFailed, match=r"0000\.json is not a manifest of an archive"):
        load(store)
