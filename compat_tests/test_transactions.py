"""Tests of transactions with clients: they are atomic, one at a time for each transactional id, and no record of an
aborted transaction is read."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from compat_tests.conftest import MakeTopic, Running
from compat_tests.transactors import KINDS, Transactor, Transactors, ends
from compat_tests.vocabulary import Refused

FENCED = r"(?i)fenced|producer_?epoch"
"""The error of clients if a newer producer has the id: Kafka's new name of the error, or the old one."""
TOO_LONG = r"(?i)invalid_?transaction_?timeout|timeout is larger than the maximum"
TOO_LONG_MS = 15 * 60_000 + 1
SHORT = 100
UNREAD_S = 1.5
"""How long consumers wait for records that they must not read."""

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def transactors(broker: Running) -> Iterator[Transactors]:
    transactors = Transactors(lambda: broker.bootstrap)
    yield transactors
    transactors.close()


Start = Callable[..., Transactor]


@pytest.fixture
def start(transactors: Transactors) -> Start:
    """start(kind, id, timeout_ms=60000) -> a Transactor whose producer is initialized."""

    def start(kind: str, transactional_id: str, timeout_ms: int = 60_000) -> Transactor:
        one = transactors(kind)
        one.do("producer", transactional_id, timeout_ms)
        return one

    return start


def end_of(admin: AdminClient, topic: str, isolation: IsolationLevel) -> int:
    place = TopicPartition(topic, 0)
    asked = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=isolation, request_timeout=30)
    return int(asked[place].result(30).offset)


@each_kind
def test_committed_records_are_read_and_aborted_ones_are_not(
    kind: str, start: Start, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    topic = make_topic(2)
    one = start(kind, unique())
    one.transaction(topic, (0, "a"), (1, "b"))
    one.transaction(topic, (0, "lost"), (1, "lost"), end="abort")
    one.transaction(topic, (0, "c"))
    one.transaction(topic, (1, "lost"), end="abort")
    one.transaction(topic, *ends(2))
    assert one.read(topic, 2) == {0: ["a", "c", "END"], 1: ["b", "END"]}
    everything = one.read(topic, 2, isolation="read_uncommitted")
    assert everything[0] in (["a", "lost", "c", "END"], ["a", "c", "END"]), "an abort may come before the send"


@each_kind
def test_one_short_transaction_after_the_other(
    kind: str, start: Start, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    """The next transaction begins while the markers of the last one are still being written."""
    topic, group = make_topic(), unique()
    one = start(kind, unique())
    one.do("burst", group, topic, SHORT)
    one.transaction(topic, *ends())
    assert one.read(topic) == {0: [*map(str, range(SHORT)), "END"]}
    assert one.do("committed", group, topic, 0) == str(SHORT)


@pytest.mark.parametrize("reader", KINDS)
def test_transactions_that_overlap_in_one_partition(
    reader: str,
    start: Start,
    transactors: Transactors,
    make_topic: MakeTopic,
    unique: Callable[[], str],
    admin: AdminClient,
) -> None:
    """There are many aborted records between committed records; the last stable offset stays below the first open
    transaction."""
    topic = make_topic()
    kept, lost = start("confluent-kafka", unique()), start("confluent-kafka", unique())
    wanted = []
    for turn in range(5):
        for one in (kept, lost):
            one.do("begin")
        for number in range(20):
            kept.do("send", topic, 0, f"kept-{turn}-{number}")
            lost.do("send", topic, 0, f"lost-{turn}-{number}")
            for one in (kept, lost):
                one.do("flush")
            wanted.append(f"kept-{turn}-{number}")
        before = end_of(admin, topic, IsolationLevel.READ_COMMITTED)
        assert end_of(admin, topic, IsolationLevel.READ_UNCOMMITTED) == before + 40
        first, then = (kept, lost) if turn % 2 else (lost, kept)
        first.do("abort" if first is lost else "commit")
        then.do("abort" if then is lost else "commit")
    kept.transaction(topic, *ends())
    assert transactors(reader).read(topic)[0] == [*wanted, "END"]


@each_kind
def test_an_open_transaction_hides_what_comes_after_it(
    kind: str, start: Start, make_topic: MakeTopic, unique: Callable[[], str], admin: AdminClient
) -> None:
    topic = make_topic()
    one, other = start(kind, unique()), start("confluent-kafka", unique())
    one.transaction(topic, (0, "first"))
    one.do("begin")
    one.do("send", topic, 0, "open")
    one.do("flush")
    other.transaction(topic, (0, "behind"))
    assert end_of(admin, topic, IsolationLevel.READ_COMMITTED) == 2, "behind a record and its marker"
    assert one.read(topic, patience_s=UNREAD_S) == {0: ["first"]}
    assert one.read(topic, isolation="read_uncommitted", patience_s=UNREAD_S) == {0: ["first", "open", "behind"]}
    one.do("commit")
    one.transaction(topic, *ends())
    assert one.read(topic) == {0: ["first", "open", "behind", "END"]}


@each_kind
def test_a_zombie_is_fenced(kind: str, start: Start, make_topic: MakeTopic, unique: Callable[[], str]) -> None:
    """A second producer with the id aborts the open transaction of the first producer, whose further requests are
    refused."""
    topic, name = make_topic(), unique()
    zombie = start(kind, name)
    zombie.transaction(topic, (0, "before"))
    zombie.do("begin")
    zombie.do("send", topic, 0, "open")
    zombie.do("flush")
    successor = start(kind, name)
    successor.transaction(topic, (0, "after"))
    with pytest.raises(Refused, match=FENCED):
        zombie.do("commit")
    successor.transaction(topic, *ends())
    assert successor.read(topic) == {0: ["before", "after", "END"]}


@each_kind
def test_a_zombie_that_sends_is_fenced(
    kind: str, start: Start, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    topic, name = make_topic(), unique()
    zombie, successor = start(kind, name), start(kind, name)
    successor.transaction(topic, (0, "mine"))
    with pytest.raises(Refused, match=FENCED):
        zombie.transaction(topic, (0, "zombie"))
    successor.transaction(topic, *ends())
    assert successor.read(topic) == {0: ["mine", "END"]}


@each_kind
def test_a_transaction_that_takes_too_long_is_aborted(
    kind: str, start: Start, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    """The coordinator aborts the transaction, and the producer receives an error when it continues."""
    topic, name = make_topic(), unique()
    slow, other = start(kind, name, 1000), start(kind, unique())
    slow.do("begin")
    slow.do("send", topic, 0, "slow")
    slow.do("flush")
    other.transaction(topic, (0, "other"), *ends())
    assert other.read(topic) == {0: ["other", "END"]}
    with pytest.raises(Refused):
        slow.do("commit")
    again = start(kind, name)
    again.transaction(topic, (0, "again"), *ends())
    assert other.read(topic, patience_s=UNREAD_S)[0][:2] == ["other", "END"]
    assert "slow" not in again.read(topic, patience_s=UNREAD_S)[0]


@each_kind
def test_a_timeout_above_the_maximum_is_refused(kind: str, transactors: Transactors, unique: Callable[[], str]) -> None:
    with pytest.raises(Refused, match=TOO_LONG):
        transactors(kind).do("producer", unique(), TOO_LONG_MS)


@each_kind
def test_offsets_are_committed_with_the_transaction(
    kind: str, start: Start, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    topic, group = make_topic(), unique()
    one = start(kind, unique())
    for end, offset, wanted in (("abort", 5, "None"), ("commit", 7, "7"), ("abort", 9, "7"), ("commit", 11, "11")):
        one.do("begin")
        one.do("send", topic, 0, end)
        one.do("offsets", group, topic, 0, offset)
        one.do(end)
        assert one.do("committed", group, topic, 0) == wanted


@each_kind
def test_a_client_killed_between_the_phases_leaves_nothing(
    kind: str, start: Start, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    """A client with records and offsets in an open transaction is killed with -9. Its successor finds neither, and need
    not wait."""
    topic, group, name = make_topic(2), unique(), unique()
    for turn in range(2):
        killed = start(kind, name)
        killed.transaction(topic, (0, f"{turn}"), (1, f"{turn}"))
        killed.do("begin")
        killed.do("send", topic, 0, "lost")
        killed.do("send", topic, 1, "lost")
        killed.do("offsets", group, topic, 0, 99)
        killed.do("flush")
        killed.kill9()
    successor = start(kind, name)
    successor.transaction(topic, *ends(2))
    assert successor.read(topic, 2) == {0: ["0", "1", "END"], 1: ["0", "1", "END"]}
    assert successor.do("committed", group, topic, 0) == "None"


def test_a_broker_killed_in_the_middle_keeps_the_transaction_open(
    broker: Running, start: Start, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    """After the restart, the broker still has the earlier records, and the transaction can be committed or aborted."""
    topic = make_topic(2)
    for end in ("commit", "abort"):
        one = start("java", unique())
        one.do("begin")
        one.do("send", topic, 0, end)
        one.do("flush")
        broker.kill9()
        broker.restart()
        one.do("send", topic, 1, end)
        one.do(end)
    last = start("java", unique())
    last.transaction(topic, *ends(2))
    assert last.read(topic, 2) == {0: ["commit", "END"], 1: ["commit", "END"]}
