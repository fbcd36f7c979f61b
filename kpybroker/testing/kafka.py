"""Operations on a Kafka cluster without a client library: topics, records, offsets of groups, and a reset."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from kpybroker.cli.json_lines import Outgoing
from kpybroker.client.client import Client, CommandFailed, parse_bootstrap
from kpybroker.testing import operations
from kpybroker.testing.arguments import mapping, text, whole_number
from kpybroker.testing.operations import ReceivedRecord
from kpybroker.testing.secure_client import SecureClient
from kpybroker.testing.waiting import becomes_true

T = TypeVar("T")
Bytes = bytes | str | None
"""A key or a value. Text is encoded in UTF-8, and None is a null."""

TIMEOUT_S = 15.0
"""The most time that one request takes."""
ATTEMPT_S = 1.0
"""The least time that one request gets, also if a shorter wait was asked for."""
EXPECT_TIMEOUT_S = 10.0
TIMESTAMP_MS_MAX = 2**63 - 1
PREFIX_MAX = 200
"""Topic names have at most 249 characters."""
SHOWN = 5
_NOT_IN_TOPIC_NAMES = re.compile(r"[^a-zA-Z0-9._-]")


class Kafka:
    """A running cluster at `bootstrap`. Every call opens its own connection, so it works in any thread.

    The calls block, even in a coroutine: use `asyncio.to_thread` there if other tasks must continue in the meantime.
    They raise KafkaError if the broker refuses a request, CommandFailed if the cluster cannot be reached or something
    does not exist, and OSError for lost connections.
    """

    def __init__(self, bootstrap: str, properties: Path | None = None) -> None:
        """`properties`: a file with the settings of a client, in the format of Apache Kafka's tools. Raises
        ConfigError."""
        text("bootstrap", bootstrap)
        if bootstrap:
            parse_bootstrap(bootstrap)
        self._bootstrap = bootstrap
        self._properties = properties
        self._names = itertools.count(1)
        self._mark = uuid.uuid4().hex[:8]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.bootstrap}>"

    @property
    def bootstrap(self) -> str:
        """`host:port[,host:port...]`, for a client's bootstrap.servers."""
        return self._bootstrap

    @property
    def client_properties(self) -> Path | None:
        """The file with the settings of a client that logs in; None if the cluster has no logins."""
        return self._properties

    @property
    def bootstrap_servers(self) -> str:
        """The same as `bootstrap`."""
        return self.bootstrap

    def get_bootstrap_server(self) -> str:
        """The same as `bootstrap`. KafkaContainer of testcontainers has a method of this name."""
        return self.bootstrap

    @property
    def client(self) -> SecureClient:
        """The settings that clients need to log in. Raises ValueError if the cluster has no logins."""
        properties = self.client_properties
        if properties is None:
            raise ValueError(f"{self!r} has no logins; start a broker with secure=True")
        return SecureClient.of(properties)

    def topic(
        self,
        prefix: str = "topic",
        *,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
        create: bool = False,
    ) -> str:
        """A unique topic name. The topic is created if `create`, or if `partitions` or `config` are given.

        Otherwise the broker creates it at its first use. Characters that Kafka refuses in topic names, such as spaces
        and brackets, become `-`.
        """
        text("prefix", prefix)
        if partitions is not None:
            whole_number("partitions", partitions)
        if config is not None:
            mapping("config", config, "{'retention.ms': 1000}")
        name = self._unique(_NOT_IN_TOPIC_NAMES.sub("-", prefix))
        if create or partitions is not None or config is not None:
            settings = {setting: as_setting(value) for setting, value in (config or {}).items()}
            self._run(lambda client: operations.create_topic(client, name, partitions, settings))
        return name

    def group(self, prefix: str = "group") -> str:
        """A unique group id."""
        text("prefix", prefix)
        return self._unique(prefix)

    def _now_ms(self) -> int:
        """The time by the clock of the brokers, in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def _unique(self, prefix: str) -> str:
        if len(prefix) > PREFIX_MAX:
            raise ValueError(f"a prefix of {len(prefix)} characters; at most {PREFIX_MAX}")
        return f"{prefix}-{self._mark}-{next(self._names)}"

    def send(
        self,
        topic: str,
        *values: Bytes,
        key: Bytes = None,
        headers: Mapping[str, Bytes] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Send one record for each value, with acks=all, and wait until all are acknowledged.

        The partition of a key is that of Kafka's default partitioner. A missing topic is created as for any producer.
        `timestamp_ms`: the time of the records (default: the time by the clock of the brokers). Raises ValueError for a
        time that Kafka cannot store and for a partition that does not exist, TypeError for headers that are not a
        mapping.
        """
        text("topic", topic)
        for name, number in (("partition", partition), ("timestamp_ms", timestamp_ms)):
            if number is not None:
                whole_number(name, number)
        if timestamp_ms is not None and not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
            raise ValueError(f"timestamp_ms={timestamp_ms}: must be from 0 to {TIMESTAMP_MS_MAX}")
        time_ms = self._now_ms() if timestamp_ms is None else timestamp_ms
        sent = [_encoded("a value", value) for value in values]
        records = [Outgoing(_encoded("key", key), value, _headers(headers), partition, time_ms) for value in sent]
        self._run(lambda client: operations.send(client, topic, records))

    def records(
        self, topic: str, *, committed_only: bool = False, at_most: int = operations.RECORDS_MAX
    ) -> list[ReceivedRecord]:
        """All records in the topic, by partition and offset, including those of open and aborted transactions.

        With `committed_only`, those that a consumer with `isolation.level=read_committed` reads. Raises ValueError if
        there are more than `at_most`.
        """
        return self._run(lambda client: operations.records(client, topic, at_most, committed_only=committed_only))

    def expect(
        self, topic: str, count: int, timeout_s: float = EXPECT_TIMEOUT_S, *, committed_only: bool = False
    ) -> list[ReceivedRecord]:
        """Wait until the topic has at least `count` records, and return all of its records. The topic need not exist
        yet.

        `committed_only` as for `records`. Raises AssertionError after `timeout_s`, with the records that were found;
        ValueError if there are more than 100,000.
        """
        text("topic", topic)
        whole_number("count", count)
        found: list[ReceivedRecord] = []

        def is_met(left_s: float) -> bool:
            found[:] = self._run(
                lambda client: operations.records_if_any(client, topic, committed_only=committed_only), left_s
            )
            return len(found) >= count

        if not becomes_true(is_met, timeout_s):
            shown = "".join(f"\n  {record}" for record in found[:SHOWN])
            more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            raise AssertionError(
                f"expected {count} records in {topic} within {timeout_s:g} s, found {len(found)}{shown}{more}"
            )
        return found

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The offsets that the group has committed in the topic, by partition; {} if there are none."""
        return self._run(lambda client: operations.committed(client, group, topic))

    def lag(self, group: str, topic: str) -> int:
        """The number of offsets of the topic that the group has not committed, over all partitions.

        A partition without a committed offset counts from its start.
        """
        return self._run(lambda client: operations.standing(client, group, topic))[0]

    def wait_until_read(self, group: str, topic: str, timeout_s: float = EXPECT_TIMEOUT_S) -> None:
        """Wait until the group has committed the end of every partition of the topic.

        Raises AssertionError after `timeout_s`, with the lag.
        """

        lag, offsets = 0, dict[int, int]()

        def is_met(left_s: float) -> bool:
            nonlocal lag, offsets
            lag, offsets = self._run(lambda client: operations.standing(client, group, topic), left_s)
            return lag == 0

        if not becomes_true(is_met, timeout_s):
            raise AssertionError(
                f"group {group} has not read {topic} within {timeout_s:g} s: its lag is {lag}, its committed offsets "
                f"are {offsets or 'none'}"
            )

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Make a broker the leader of a partition of which it has a replica, and wait until it is.

        The broker becomes the first replica, so it stays the preferred leader. Raises ValueError if it has no replica,
        KafkaError (PREFERRED_LEADER_NOT_AVAILABLE) if it is not in sync.
        """
        self._run(lambda client: operations.move_leader(client, topic, partition, to))

    def move_coordinator(self, group: str, to: int) -> None:
        """Make a broker the coordinator of a group, as `move_leader` does. The topic `__consumer_offsets` must exist,
        which the first member or commit of any group creates."""
        text("group", group)
        self._run(lambda client: operations.move_coordinator(client, group, to))

    @property
    def controller(self) -> int:
        """The id of the active controller."""
        return self._run(operations.controller)

    def in_sync(self, topic: str, partition: int = 0) -> list[int]:
        """The brokers whose replicas of a partition are in sync (its ISR), in order."""
        return self._run(lambda client: operations.in_sync(client, topic, partition))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the records of each partition before an offset, so that consumers that are behind it are out of
        range. Raises ValueError for a partition that does not exist."""
        mapping("before", before, "{0: 100}")
        self._run(lambda client: operations.delete_records(client, topic, before))

    def remove_members(self, group: str) -> list[str]:
        """Let all members leave a classic or a consumer group, as if their sessions had ended: they notice it with
        their next heartbeat, and join again, which is a rebalance. Returns their ids."""
        return self._run(lambda client: operations.remove_members(client, group))

    def fence_producer(self, transactional_id: str) -> None:
        """Begin another incarnation of a transactional producer: its transaction is aborted, and it is fenced."""
        self._run(lambda client: operations.fence_producer(client, transactional_id))

    def reset(self) -> None:
        """Delete all groups and all topics but the internal ones. Raises KafkaError if a group has members."""
        self._run(operations.reset)

    def _addresses(self) -> str:
        """The addresses that the calls of this object use, the best first."""
        return self.bootstrap

    def _silent(self) -> list[str]:
        """The brokers that do not respond, and why, as far as that is known."""
        return []

    def _run(self, scenario: Callable[[Client], Awaitable[T]], at_most_s: float | None = None) -> T:
        """Run a scenario with its own connection and in its own thread, because the caller may have an event loop.

        `at_most_s`: how long it may take in all, but not less than ATTEMPT_S.
        """
        limit_s = None if at_most_s is None else max(at_most_s, ATTEMPT_S)
        try:
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(lambda: asyncio.run(self._with_client(scenario, limit_s))).result()
        except (CommandFailed, OSError) as error:
            for reason in self._silent():
                error.add_note(reason)
            raise

    async def _with_client(self, scenario: Callable[[Client], Awaitable[T]], limit_s: float | None) -> T:
        addresses = self._addresses()
        client = operations.client_of(addresses, self.client_properties, min(limit_s or TIMEOUT_S, TIMEOUT_S))
        try:
            async with asyncio.timeout(limit_s) as limit:
                with contextlib.closing(client):
                    await client.start()
                    return await scenario(client)
        except TimeoutError:
            if not limit.expired():
                raise
            raise CommandFailed(f"{addresses} did not respond within {limit_s:.1f} s") from None


def as_setting(value: object) -> str:
    """The value of a setting as text: True becomes `true`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _encoded(name: str, content: Bytes) -> bytes | None:
    """Raises TypeError."""
    if content is not None and not isinstance(content, str | bytes | bytearray | memoryview):
        raise TypeError(f"{name} is {content!r}: give text, bytes or None, not {type(content).__name__}")
    return content.encode() if isinstance(content, str) else None if content is None else bytes(content)


def _headers(headers: Mapping[str, Bytes] | None) -> tuple[tuple[str, bytes | None], ...]:
    if headers is None:
        return ()
    mapping("headers", headers, "{'trace': 'a1'}")
    for name in headers:
        text("the name of a header", name)
    return tuple((name, _encoded(f"the header {name}", value)) for name, value in headers.items())
