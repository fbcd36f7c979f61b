"""A test of Kafka Streams with a view and a topic with scheduled records: one application reads the view and schedules
its records in transactions, another one counts the words of the records that are delivered.

Apache Kafka has neither. There, the first application reads the source itself, and writes into an ordinary topic.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.changing import until
from compat_tests.client_confluent import Confluent
from compat_tests.conftest import MakeTopic, Running
from compat_tests.pipelines import Program
from compat_tests.vocabulary import Message, Received, closing, send_all

DELAY_MS = 1500
COUNT = 120
REGIONS = (b"eu", b"us")
PARTITIONS = 2


def create(admin: AdminClient, name: str, partitions: int, **settings: str) -> str:
    configs = {f"kpybroker.{setting.replace('_', '.')}": value for setting, value in settings.items()}
    admin.create_topics([NewTopic(name, partitions, -1, config=configs)])[name].result(30)
    return name


def test_an_application_schedules_the_records_of_a_view_and_another_one_reads_them(
    broker: Running,
    admin: AdminClient,
    make_topic: MakeTopic,
    unique: Callable[[], str],
    target_name: str,
    tmp_path: Path,
) -> None:
    lines, counts, is_kpybroker = make_topic(PARTITIONS), make_topic(PARTITIONS), target_name == "kpybroker"
    if is_kpybroker:
        shown = create(admin, f"{lines}.eu", -1, view_of=lines, view_where='header.region == "eu"')
        later = create(admin, unique(), PARTITIONS, delivery_scheduled="true")
    else:
        shown, later = lines, make_topic(PARTITIONS)
    sent = [Message(b"line %d" % number, b"%d" % number, (("region", REGIONS[number % 2]),)) for number in range(COUNT)]
    producer = Confluent().producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, lines, sent)
    wanted = [message.value or b"" for message in sent if not is_kpybroker or message.headers[0][1] == b"eu"]
    words = Counter(word for line in wanted for word in line.split())
    found: dict[bytes | None, int] = {}
    where, folders = broker.bootstrap, (str(tmp_path / "scheduling"), str(tmp_path / "counting"))
    scheduling = [where, unique(), folders[0], shown, later, f"{DELAY_MS}ms"]
    counting = [where, unique(), "one", folders[1], "exactly_once_v2", "words", later, counts]
    consumer = Confluent().consumer(broker.bootstrap, isolation="read_committed")
    with (
        closing(consumer),
        Program("Scheduling", *scheduling, log=tmp_path / "scheduling.log") as first,
        Program("Counting", *counting, log=tmp_path / "counting.log") as second,
    ):
        consumer.assign({(counts, partition): "earliest" for partition in range(PARTITIONS)})

        def counted() -> bool:
            for one in consumer.poll(0.2):
                found[one.key] = int(one.value or b"0")
            assert first.running, first.tail()
            return found == words

        second.until(counted, f"counted; {found}")
        first.stop()
        second.stop()
    check(read(broker.bootstrap, later, len(wanted)), wanted, is_kpybroker)


def read(bootstrap: str, topic: str, count: int) -> list[Received]:
    consumer = Confluent().consumer(bootstrap, isolation="read_committed")
    found: list[Received] = []
    with closing(consumer):
        consumer.assign({(topic, partition): "earliest" for partition in range(PARTITIONS)})
        until(lambda: found.extend(consumer.poll(0.2)) or len(found) >= count, f"{count} records are there")
    return found


def check(found: list[Received], wanted: list[bytes], is_kpybroker: bool) -> None:
    """Each record was delivered once, with the application's header and those of the delivery."""
    assert sorted(record.value or b"" for record in found) == sorted(wanted)
    for record in found:
        headers = dict(record.headers)
        assert headers["deliver-after"] == b"%dms" % DELAY_MS
        assert ("deliver-offset" in headers) == is_kpybroker
