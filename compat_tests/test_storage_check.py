"""Tests of `kpybroker storage check` and `repair` on directories of both brokers; kafka-dump-log checks the results."""

import struct
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.conftest import Running, start_target
from compat_tests.dumps import dump_everything

RECORDS = 3000


def storage(*args: str) -> subprocess.CompletedProcess[str]:
    """Run `kpybroker storage`."""
    return subprocess.run(
        [sys.executable, "-m", "kpybroker", "storage", *args], capture_output=True, text=True, check=False
    )


def live(broker: Running) -> None:
    """Write records in several segments, committed and aborted transactions, and a group."""
    broker.tool(
        "kafka-topics",
        "--create",
        "--topic",
        "t",
        "--config",
        "segment.bytes=1048576",
        "--config",
        "index.interval.bytes=500",
    ).ok()
    broker.tool("kafka-topics", "--create", "--topic", "u").ok()
    plain = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 10})
    for number in range(RECORDS):
        plain.produce("t", b"%06d" % number + b"x" * 1000)
        plain.poll(0)
    plain.flush()
    transactional = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tx"})
    transactional.init_transactions()
    for number in range(10):
        transactional.begin_transaction()
        transactional.produce("u", b"%d" % number)
        transactional.flush()
        transactional.commit_transaction() if number % 3 else transactional.abort_transaction()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.commit(offsets=[TopicPartition("t", 0, 100)], asynchronous=False)
    consumer.close()


def values(broker: Running) -> list[bytes]:
    """All readable records of `t`, from the beginning to the end."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "r", "enable.partition.eof": True})
    consumer.assign([TopicPartition("t", 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and not message.error():
        found.append(bytes(message.value() or b""))
    consumer.close()
    return found


def batches(log: Path) -> list[tuple[int, int, int, int]]:
    """Position, size, base offset and records of each batch."""
    data, at, found = log.read_bytes(), 0, []
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        found.append((at, length + 12, base, struct.unpack_from(">i", data, at + 57)[0]))
        at += length + 12
    return found


def test_a_damaged_batch_is_named_and_removed_and_nothing_else_is_lost(target_name: str) -> None:
    with start_target(target_name) as broker:
        live(broker)
        running = storage("check", str(broker.data))
        assert (running.returncode, running.stdout) == (1, "")
        assert "is in use by a broker; stop it first" in running.stderr
        broker.stop()
        whole = storage("check", str(broker.data))
        assert (whole.returncode, whole.stdout) == (0, f"{broker.data}: no problems found\n"), whole.stdout
        log = sorted((broker.data / "t-0").glob("*.log"))[1]
        position, size, base, count = batches(log)[20]
        content = bytearray(log.read_bytes())
        content[position + size // 2] ^= 0xFF
        log.write_bytes(content)
        damaged = storage("check", str(broker.data))
        assert damaged.returncode == 1
        (row,) = damaged.stdout.splitlines()[2:]
        assert row.split()[:3] == [f"t-0/{log.name}", str(position), str(base)]
        assert storage("repair", str(broker.data)).returncode == 1
        assert log.read_bytes() == content
        done = storage("repair", str(broker.data), "--yes")
        assert done.returncode == 0, done
        assert storage("check", str(broker.data)).returncode == 0
        dump_everything(broker.data)
        [aside] = Path(f"{broker.data}.set-aside").rglob(log.name)
        assert aside.read_bytes() == content
        for end in (broker.stop, broker.kill9):
            broker.restart()
            lost = {b"%06d" % number + b"x" * 1000 for number in range(base, base + count)}
            assert [one for one in values(broker) if one in lost] == []
            assert len(values(broker)) == RECORDS - count
            end()
