"""Topics, groups and producers that are used first on one broker software and then on the other, on the same directory.

A `Life` creates everything under its own name (`begin`). Then, on either broker, it sends the requests that its clients
would send next (`go_on`). It sends single requests, so that it controls exactly which requests are repeated, and which
must be refused.
"""

from __future__ import annotations

from compat_tests.changing import LONG_MS, Source, alter, commit, create, send, until
from compat_tests.kept import await_move, directories, move, set_quota
from compat_tests.takeover_clients import Classic, Idempotent, Modern, Transacting
from compat_tests.takeover_fencing import Fenced
from compat_tests.visible import BROKER, CLIENT_GROUP, TOPIC, WITHOUT_NAME, Eyes, Place, read
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.records.compression import Codec
from kpybroker.wire.rpc import alter_partition_reassignments, create_partitions, delete_records, delete_topics

EXPIRES_MS = 2_000


class Life:
    """All topics, groups and ids whose names begin with `name`. Call `begin` once, then `go_on` any number of times."""

    def __init__(self, name: str, source: Source, replicas: int) -> None:
        self.name = name
        self.replicas = replicas
        self.source = source
        self.times = 0
        plain, places = (self.topic("plain"), 0), [(self.topic("transacted"), at) for at in (0, 1)]
        self.idempotent = Idempotent(self.source, self.topic("idempotent"))
        self.transacting = [
            Transacting(self.source, self.topic("commits"), places, plain, commits=True),
            Transacting(self.source, self.topic("aborts"), places, plain),
        ]
        self.expiring = Transacting(self.source, self.topic("expiring"), [(self.topic("expiring"), 0)], plain)
        self.fenced = Fenced(self.source, self.topic("fenced"), (self.topic("fenced"), 0))
        self.classic = Classic(self.topic("classic"), self.topic("plain"))
        self.modern = Modern(self.topic("modern"), self.topic("grown"))

    @property
    def unsteady(self) -> tuple[str, ...]:
        """The topics, groups and transactional ids that change without requests."""
        return self.topic("expiring"), self.expiring.group, self.compacted[0]

    @property
    def compacted(self) -> Place:
        """A partition that is cleaned from time to time."""
        return self.topic("compacted"), 0

    def topic(self, name: str) -> str:
        """The name of one of this object's topics."""
        return f"{self.name}-{name}"

    # ---- the beginning

    def begin(self, eyes: Eyes) -> None:
        """Create everything."""
        keeps = {"retention.ms": "-1"}
        self._create(eyes, "plain", 2, **keeps)
        self._create(eyes, "codecs", 1, **keeps)
        self._create(eyes, "rolled", 1, **keeps, **{"segment.bytes": str(1 << 20), "index.interval.bytes": "1024"})
        self._create(eyes, "cut", 1, **keeps)
        self._create(eyes, "stamped", 1, **{"message.timestamp.type": "LogAppendTime"})
        self._create(eyes, "repacked", 1, **keeps, **{"compression.type": "zstd"})
        self._create(eyes, "grown", 1, **keeps)
        self._create(eyes, "gone", 1)
        self._create(eyes, "again", 1)
        self._create(eyes, "transacted", 2, **keeps)
        self._create(eyes, "expiring", 1, **keeps)
        self._create(eyes, "fenced", 1, **keeps)
        self._create(eyes, "idempotent", 1, **keeps)
        cleaned = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "50"}
        self._create(eyes, "compacted", 1, **cleaned)
        grown = create_partitions.CreatePartitionsTopic(name=self.topic("grown"), count=3, assignments=None)
        request = create_partitions.Request(topics=[grown], timeout_ms=9000)
        assert eyes.ask("CreatePartitions", request, create_partitions.Response).results[0].error_code == 0
        self._write(eyes)
        self._delete(eyes, "gone")
        self._delete(eyes, "again")
        self._create(eyes, "again", 1, **keeps)
        self.send(eyes, "again", encode_batch(self.source.records(3)))
        self._settle_settings(eyes)
        self._move_replicas(eyes)
        self._commit_offsets(eyes)
        self.classic.join(eyes)
        self.modern.join(eyes)
        self.idempotent.begin(eyes)
        self.fenced.begin(eyes)
        self.expiring.begin(eyes, EXPIRES_MS)
        for one in self.transacting:
            one.begin(eyes)
            one.leave_open(eyes)
            one.end(eyes)

    def _write(self, eyes: Eyes) -> None:
        for at in (0, 1):
            self.send(eyes, "plain", encode_batch(self.source.records(40)), at)
        for name in ("gone", "again", "cut", "stamped", "repacked"):
            self.send(eyes, name, encode_batch(self.source.records(20)))
        for codec in Codec:
            for count in (1, 50):
                self.send(eyes, "codecs", encode_batch(self.source.records(count, b"x" * 100), codec=codec))
        for _ in range(40):
            self.send(eyes, "rolled", encode_batch(self.source.records(30, b"x" * 3000)))
        for at in range(3):
            self.send(eyes, "grown", encode_batch(self.source.records(5)), at)
        cut = delete_records.DeleteRecordsPartition(partition_index=0, offset=7)
        topic = delete_records.DeleteRecordsTopic(name=self.topic("cut"), partitions=[cut])
        request = delete_records.Request(topics=[topic], timeout_ms=9000)
        told = eyes.ask_leader((self.topic("cut"), 0), "DeleteRecords", request, delete_records.Response)
        assert told.topics[0].partitions[0].error_code == 0
        self.compact(eyes)

    def compact(self, eyes: Eyes) -> None:
        """Write records with few keys, in several segments."""
        for _ in range(4):
            self.source.now_ms += 1000
            keyed = [record for record in self.source.records(20, keys=7) if record.key is not None]
            self.send(eyes, "compacted", encode_batch(keyed))

    def _settle_settings(self, eyes: Eyes) -> None:
        alter(eyes, BROKER, WITHOUT_NAME, {"producer.id.expiration.ms": str(86_400_000 + eyes.nodes[0])})
        alter(eyes, BROKER, str(eyes.nodes[0]), {"leader.replication.throttled.rate": "1000000000"})
        alter(eyes, TOPIC, self.topic("plain"), {"max.message.bytes": "2000012", "retention.bytes": "123456789"})
        alter(eyes, CLIENT_GROUP, self.topic("modern"), {"consumer.session.timeout.ms": str(LONG_MS)})
        set_quota(eyes, self.topic("client"), producer_byte_rate=123456.0, request_percentage=50.5)

    def _move_replicas(self, eyes: Eyes) -> None:
        """Move replicas to another directory if there are several, and to another node if there are several."""
        place, node = (self.topic("plain"), 0), eyes.nodes[0]
        if len(directories(eyes, node)) > 1:
            await_move(eyes, place, node, move(eyes, place, node))
        if len(eyes.nodes) > 1:
            rest = tuple(eyes.nodes[1:])
            row = alter_partition_reassignments.ReassignablePartition(partition_index=place[1], replicas=list(rest))
            topic = alter_partition_reassignments.ReassignableTopic(name=place[0], partitions=[row])
            request = alter_partition_reassignments.Request(topics=[topic])
            told = eyes.ask("AlterPartitionReassignments", request, alter_partition_reassignments.Response)
            assert (told.error_code, told.responses[0].partitions[0].error_code) == (0, 0)
            until(lambda: eyes.see() or eyes.rows[place].replicas == rest, f"{place} has moved")

    def _commit_offsets(self, eyes: Eyes) -> None:
        self.commit(eyes, "offsets", (self.topic("plain"), 0), 17, "a note")
        self.commit(eyes, "offsets", (self.topic("plain"), 1), 0, "")
        self.commit(eyes, "offsets", (self.topic("codecs"), 0), 5, "x" * 1000)

    def _create(self, eyes: Eyes, name: str, partitions: int, **configs: str) -> None:
        create(eyes, self.topic(name), partitions, self.replicas, configs)

    def _delete(self, eyes: Eyes, name: str) -> None:
        topic = delete_topics.DeleteTopicState(name=self.topic(name))
        told = eyes.ask("DeleteTopics", delete_topics.Request(topics=[topic], timeout_ms=9000), delete_topics.Response)
        assert told.responses[0].error_code == 0
        until(lambda: eyes.see() or self.topic(name) not in eyes.ids, f"{name} is gone")

    def send(self, eyes: Eyes, name: str, batch: bytes | bytearray, partition: int = 0) -> int:
        """Send a Produce. Returns the offset."""
        return send(eyes, (self.topic(name), partition), batch)

    def commit(self, eyes: Eyes, group: str, place: Place, offset: int, note: str = "") -> None:
        """Commit for a group without members."""
        commit(eyes, self.topic(group), place, offset, note)

    # ---- the continuation

    def go_on(self, eyes: Eyes) -> None:
        """Continue all clients on this broker, as if the broker had not changed."""
        self.times += 1
        for at in (0, 1):
            self.send(eyes, "plain", encode_batch(self.source.records(10, b"time %d" % self.times)), at)
        for name in ("cut", "stamped", "repacked", "again", "grown"):
            self.send(eyes, name, encode_batch(self.source.records(2)))
        self.send(eyes, "rolled", encode_batch(self.source.records(300, b"x" * 3000)))
        self.compact(eyes)
        self.idempotent.go_on(eyes)
        self.fenced.go_on(eyes)
        for one in self.transacting:
            one.go_on(eyes)
        self.expiring.has_expired(eyes, EXPIRES_MS)
        self.commit(eyes, "offsets", (self.topic("plain"), 1), self.times, f"time {self.times}")
        self.classic.go_on(eyes)
        self.modern.go_on(eyes)
        alter(eyes, TOPIC, self.topic("plain"), {"retention.bytes": str(10**9 + self.times)})

    def leave_open(self, eyes: Eyes) -> None:
        """Do the last step before the broker changes: leave transactions open, and leave files that are still to be
        deleted."""
        for one in self.transacting:
            one.leave_open(eyes)
        self._create(eyes, "doomed", 1)
        assert self.send(eyes, "doomed", encode_batch(self.source.records(5))) == 0, "deleted records exist again"
        self._delete(eyes, "doomed")

    def let_expire(self, eyes: Eyes) -> None:
        """Begin one more transaction, which no producer ends."""
        self.expiring.leave_open(eyes)

    def table(self, eyes: Eyes) -> dict[bytes, bytes]:
        """The newest value of each key that a reader of the compacted topic finds."""
        return table(eyes, self.compacted)


def table(eyes: Eyes, place: Place) -> dict[bytes, bytes]:
    """The newest value of each key."""
    found: dict[bytes, bytes] = {}
    for _, _, _, key, value, _, kind in read(eyes, place, 0, 1 << 60)[0]:
        assert key is not None, kind
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found
