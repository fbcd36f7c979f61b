"""The operations on an archive: copy, verify, replay, read, clean.

`spark` returns a session (`kpybroker.spark.session`). It is called only when a session is needed, so that earlier
errors are reported without starting a JVM.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache

from confluent_kafka import KafkaException
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kpybroker.archive import replaying, verifying
from kpybroker.archive.cluster import describe, require_rights
from kpybroker.archive.copying import Copier
from kpybroker.archive.facts import own, read_files
from kpybroker.archive.history import ArchiveHistory, commit, load, new_run
from kpybroker.archive.manifest import Manifest, Span
from kpybroker.archive.planning import plan, rounds, without_deleted
from kpybroker.archive.store import open_store
from kpybroker.client.client import CommandFailed
from kpybroker.client.session import TIMEOUT_MS
from kpybroker.spark import Cluster, explained
from kpybroker.spark.prerequisites import require_java

Spark = Callable[[], SparkSession]
Advance = Callable[[int, int], None]
"""Called with (done, total) in offsets or records, to report progress."""
ROUND = 1_000_000
LOOK_S = 0.5
"""The interval between reports of a replay's progress."""


def _quiet(done: int, total: int) -> None:
    """Ignore a report of progress."""


def copy(
    spark: Spark,
    cluster: Cluster | str,
    where: str,
    topics: Sequence[str],
    *,
    isolation: str = "read_committed",
    round_offsets: int = ROUND,
    advance: Advance = _quiet,
    timeout_ms: int = TIMEOUT_MS,
) -> list[tuple[str, Span]]:
    """Copy records that are not in the archive yet, in rounds of at most `round_offsets` offsets.

    Each round is committed. Returns the new spans with their topics. Raises CommandFailed, ConfigError; rounds that
    were committed before the error are kept.
    """
    cluster = Cluster.of(cluster)
    cluster_id, found = describe(cluster, sorted(set(topics)), isolation, timeout_ms)
    with plain_errors():
        store = open_store(where, spark)
        history = load(store)
        ids = {topic.name: topic.topic_id for topic in found}
        history.require(cluster_id, ids, isolation, store.uri)
        history.unfinished(store)
        ranges = plan(found, history.ends())
        total = sum(range_.end - range_.start for range_ in ranges.values())
        copied: list[tuple[str, Span]] = []
        if not ranges:
            return copied
        require_java()
        store.require_writable()
        copier = Copier(cache(lambda: own(spark())), cluster, store, history, isolation, timeout_ms)
        done = 0
        advance(done, total)
        for turn in rounds(ranges, round_offsets):
            _, now = describe(cluster, sorted(ids), isolation, timeout_ms)
            manifest = copier.copy(without_deleted(turn, now), cluster_id, ids)
            spans = [(topic.name, span) for topic in manifest.topics for span in topic.spans]
            copied += spans
            done += sum(range_.end - range_.start for range_ in turn.values())
            advance(done, total)
        return copied


def verify(
    spark: Spark, cluster: Cluster | str, where: str, *, with_topics: bool = True, timeout_ms: int = TIMEOUT_MS
) -> tuple[ArchiveHistory, verifying.Verdict]:
    """Compare the archive with its manifests and with the topics. Raises CommandFailed if it cannot be read."""
    with plain_errors():
        store = open_store(where, spark)
        history = load(store)
        origin = history.origin
        if origin is None:
            raise CommandFailed(f"{store.uri} has no archive")
        verdict = verifying.Verdict()
        files = verifying.look_at_folder(history, store.files("data"), verdict)
        ours = own(spark())
        right = verifying.look_into_files(ours, store, files, verdict)
        if with_topics:
            cluster = Cluster.of(cluster)
            cluster_id, topics = describe(cluster, sorted(history.topic_ids), origin.isolation, timeout_ms)
            history.require(cluster_id, {topic.name: topic.topic_id for topic in topics}, origin.isolation, store.uri)
            verifying.look_at_offsets(history, topics, verdict)
            sound = {file.path for file in right}
            damaged = {place for place, file in history.files() if file.path not in sound}
            verifying.Comparison(ours, cluster, store, history, topics, damaged).run(verdict)
        return history, verdict


def replay(
    spark: Spark,
    cluster: Cluster | str,
    where: str,
    wanted: replaying.ReplayScope,
    target: str,
    *,
    name: str = "",
    advance: Advance = _quiet,
    timeout_ms: int = TIMEOUT_MS,
) -> dict[int, tuple[int, int]]:
    """Write records back to a topic. Returns (records sent now, records of the whole replay) for each partition.

    A replay that was killed and is started again with the same arguments continues after its last committed record; a
    complete replay sends nothing. With another `name` it is a separate replay. Raises CommandFailed, ConfigError.
    """
    with plain_errors():
        store = open_store(where, spark)
        history = load(store)
        if wanted.topic not in history.topic_ids:
            known = ", ".join(sorted(history.topic_ids)) or "nothing"
            raise CommandFailed(f"{store.uri} does not have {wanted.topic}; it has {known}")
        cluster = Cluster.of(cluster)
        _, (topic,) = describe(cluster, [target], "read_uncommitted", timeout_ms)
        group = replaying.name_of_replay(history, wanted, topic.topic_id, name)
        require_rights(cluster, group, timeout_ms)
        paths = replaying.files_of(history, wanted)
        if not paths:
            raise CommandFailed(f"{store.uri} has no such records of {wanted.topic}")
        records = replaying.select(own(spark()), store, paths, wanted)
        sizes = replaying.sizes_of(records)
        if not sizes:
            raise CommandFailed(f"{store.uri} has no such records of {wanted.topic}")
        if max(sizes) not in topic.offsets:
            raise CommandFailed(
                f"{target} has {len(topic.offsets)} partitions, but the records need {max(sizes) + 1}: "
                f"`kpybroker topics alter {target} --partitions {max(sizes) + 1}`"
            )
        work = replaying.TopicReplay(cluster, target, group, sizes)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(work.run, records)
            while not wait([sending], LOOK_S).done:
                advance(work.done(), work.total)
            sent = sending.result()
        advance(work.total, work.total)
        return {partition: (sent.get(partition, 0), size.records) for partition, size in sorted(sizes.items())}


def read(spark: SparkSession, where: str, topics: Sequence[str] = ()) -> DataFrame:
    """The archived records of some topics, or of all, with the columns of `facts.SCHEMA`, in no particular order.

    Reads only the files that manifests name, so it reads no record twice, and no record of a run that was killed.
    """
    with plain_errors():
        store = open_store(where, lambda: spark)
        history = load(store)
        for topic in topics:
            if topic not in history.topic_ids:
                raise CommandFailed(f"{store.uri} does not have {topic}")
        paths = [file.path for (topic, _), file in history.files() if not topics or topic in topics]
        if not paths:
            raise CommandFailed(f"{store.uri} has no records")
        return read_files(spark, store.uri, paths)


def clean(spark: Spark, where: str) -> int:
    """Delete the files of unfinished runs, and return how many. A run in progress fails, and none of its files are
    kept.

    Raises CommandFailed, ConfigError.
    """
    with plain_errors():
        store = open_store(where, spark)
        history = load(store)
        if not history.manifests:
            raise CommandFailed(f"{store.uri} has no archive, so its files may belong to something else")
        runs = history.unfinished(store)
        if not runs:
            return 0
        origin = history.origin
        fence = Manifest(
            number=history.next_number,
            previous=history.digest,
            run=new_run(history.next_number),
            cluster_id=origin.cluster_id if origin else "",
            isolation=origin.isolation if origin else "",
            created_ms=time.time_ns() // 1_000_000,
            topics=(),
        )
        commit(store, history, fence)
        files = 0
        for name in runs:
            files += len(store.files(f"data/{name}"))
            store.delete(f"data/{name}")
        return files


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turn exceptions of Spark, its JVM and the operating system into CommandFailed with one line."""
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise CommandFailed(f"Spark's JVM ended during the job: {error}") from error
    except OSError as error:
        raise CommandFailed(f"the archive's folder cannot be used: {error}") from error
    except (Py4JJavaError, PySparkException) as error:
        raise CommandFailed(f"Spark failed: {explained(error)}") from error
    except KafkaException as error:
        raise CommandFailed(f"the replay's progress cannot be read: {explained(error)}") from error
