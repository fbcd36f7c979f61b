"""The Kafka client of the command line: connections to brokers, metadata, leaders, and retries of transient errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kpybroker.client.dialer import Dialer, HandshakeFailed
from kpybroker.client.login import LoginFailed
from kpybroker.client.peer import Peer
from kpybroker.errors import ConfigError, ErrorCode, KafkaError, MalformedFrame
from kpybroker.similar_names import nearest_name
from kpybroker.topics import TopicPartition
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import list_offsets
from kpybroker.wire.rpc import metadata as asking
from kpybroker.wire.rpc.metadata import MetadataResponseTopic

T = TypeVar("T")
Address = tuple[str, int]
Reasons = dict[TopicPartition, str]

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CLIENT_ID = "kpybroker-cli"
ADDRESSES_MAX = 64
FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0
CREATION_PAUSES_S = (0.05, 0.1, 0.2, 0.4)
"""Pauses while a topic is created: Apache Kafka first reports that the topic is unknown, and then creates it."""
EARLIEST, LATEST = -2, -1
"""Special timestamps of ListOffsets."""
STORAGE_ERROR = "its leader, node {}, cannot read or write its log (KAFKA_STORAGE_ERROR); see the log of that node"
PASSING = {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}
"""Errors that the protocol guide calls retriable. A command retries them until its timeout."""


class CommandFailed(Exception):
    """A command failed. The text is one line with the cause and a remedy. The exit code is 1."""


class NodeOutOfReach(ConnectionError):
    """A broker of the cluster is unreachable, although another one responds. The text names the broker."""


def check(code: int, message: str | None = None) -> None:
    """Raise KafkaError for any code but NONE."""
    if code:
        known = ErrorCode(code) if code in ErrorCode._value2member_map_ else ErrorCode.UNKNOWN_SERVER_ERROR
        raise KafkaError(known, message or None)


def parse_bootstrap(text: str) -> list[Address]:
    """Parse `host:port[,host:port...]`, with IPv6 hosts in brackets. Raises ConfigError."""
    addresses: list[Address] = []
    for part in text.split(","):
        host, _, port = part.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            host = ""
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535):
            raise ConfigError(f"cannot read the address {part.strip()!r}: write host:port, such as {DEFAULT_BOOTSTRAP}")
        addresses.append((host, int(port)))
    if len(addresses) > ADDRESSES_MAX:
        raise ConfigError(f"{len(addresses)} addresses; give at most {ADDRESSES_MAX}")
    return addresses


class Client:
    """Connections to the brokers of one cluster. Call `start` first and `close` last."""

    def __init__(
        self, dialer: Dialer, addresses: Sequence[Address], timeout_ms: int, client_id: str = CLIENT_ID
    ) -> None:
        self.timeout_ms = timeout_ms
        self._client_id = client_id
        self._dialer = dialer
        self._addresses = addresses
        self._peers: dict[Address, Peer] = {}
        self._home = addresses[0]
        self._deadline: float | None = None
        self.brokers: dict[int, Address] = {}
        self.cluster_id: str | None = None
        """The cluster id in the last Metadata response."""

    async def start(self) -> None:
        """Connect to the first address that responds. Raises CommandFailed."""
        failures: list[str] = []
        remedy = ": start a broker with `kpybroker dev`, or name another with --bootstrap"
        for address in self._addresses:
            try:
                await self._peer(address)
            except ConnectionRefusedError:
                failures.append(f"no server listens at {_shown(address)}")
            except TimeoutError:
                failures.append(f"{_shown(address)} does not respond within {self.timeout_ms / 1000:g} s")
            except LoginFailed as error:
                raise CommandFailed(f"{_shown(address)}: {error}") from error
            except HandshakeFailed as error:
                failures.append(f"{_shown(address)}, with TLS: {error}")
                remedy = ""
            except (ConnectionError, MalformedFrame) as error:
                failures.append(
                    f"{_shown(address)} does not respond like a Kafka broker ({error}); if its listener has TLS or "
                    "logins, give --command-config a file with security.protocol"
                )
            except OSError as error:
                failures.append(f"cannot reach {_shown(address)}: {error.strerror or error}")
            else:
                self._home = address
                return
        raise CommandFailed(f"{'; '.join(failures)}{remedy}")

    def limit_timeout(self, most_ms: int) -> None:
        """Limit the timeout of all responses to `most_ms`."""
        self.timeout_ms = min(self.timeout_ms, most_ms)

    def learn(self, cluster_id: str | None, brokers: Mapping[int, Address]) -> None:
        """Store the cluster id and the brokers' addresses from a response."""
        self.cluster_id = cluster_id
        self.brokers |= brokers

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    async def dial(self, node: int, client_id: str) -> Peer:
        """Another connection to a broker, or to the bootstrap broker if the cluster has no such broker. The caller
        closes it. Raises OSError."""
        async with asyncio.timeout(self.timeout_ms / 1000):
            return await self._dialer.meet(*self.brokers.get(node, self._home), client_id=client_id)

    async def _peer(self, address: Address) -> Peer:
        peer = self._peers.get(address)
        if peer is not None and peer.is_open:
            return peer
        async with asyncio.timeout(self.timeout_ms / 1000):
            peer = await self._dialer.dial(*address, client_id=self._client_id)
            self._peers[address] = peer
            await peer.negotiate()
        return peer

    async def _peer_of(self, node: int) -> Peer:
        address = self.brokers[node]
        try:
            return await self._peer(address)
        except OSError as error:
            raise NodeOutOfReach(f"node {node} is unreachable at {_shown(address)}") from error

    async def ask(self, name: str, request: Any, *, node: int | None = None, at_most: int | None = None) -> Any:
        """The response of broker `node`, or of the bootstrap broker. `at_most` limits the version.

        Raises OSError (which includes TimeoutError and ConnectionError) and MalformedFrame.
        """
        peer = await self._peer(self._home) if node is None else await self._peer_of(node)
        version = peer.best_version(by_name[name])
        if at_most is not None:
            version = min(version, at_most)
        try:
            async with asyncio.timeout(self.timeout_ms / 1000):
                return await peer.ask(name, request, version=version)
        except TimeoutError:
            peer.close()  # responses arrive in order, so the next request would also wait for this response
            raise

    async def send(self, name: str, request: Any, *, node: int) -> None:
        """Send a request without a response (Produce with acks=0), at the pace of the socket. Raises OSError."""
        peer = await self._peer(self.brokers[node])
        async with asyncio.timeout(self.timeout_ms / 1000):
            await peer.send(name, request)

    async def patiently(self, attempt: Callable[[], Awaitable[T]], *, resend: bool = True) -> T:
        """Retry `attempt` after retriable errors until the timeout; then raise the last error.

        `resend`: also retry after a lost connection, because repeating the request is harmless.
        """
        clock = asyncio.get_running_loop().time
        outer = self._deadline
        # nested calls, for example for metadata, share this deadline
        deadline = self._deadline = clock() + self.timeout_ms / 1000 if outer is None else outer
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    return await attempt()
                except KafkaError as refusal:
                    if refusal.code not in PASSING or clock() + pause_s > deadline:
                        raise
                except OSError:
                    if not resend or clock() + pause_s > deadline:
                        raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
        finally:
            self._deadline = outer

    async def metadata(
        self, names: Iterable[str] | None = None, *, create: bool = False
    ) -> dict[str, MetadataResponseTopic]:
        """The named topics, or all, with their error codes. Also updates the brokers' addresses.

        `create`: the broker creates missing topics if its auto.create.topics.enable is true.
        """
        topics = None if names is None else [asking.MetadataRequestTopic(name=name) for name in names]
        request = asking.Request(topics=topics, allow_auto_topic_creation=create)

        async def attempt() -> asking.Response:
            response: asking.Response = await self.ask("Metadata", request)
            check(response.error_code)
            return response

        response = await self.patiently(attempt)
        self.cluster_id = response.cluster_id
        self.brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        return {topic.name: topic for topic in response.topics if topic.name is not None}

    async def existing(self, names: Sequence[str]) -> dict[str, MetadataResponseTopic]:
        """Like `metadata`, but every topic must exist; partitions need no leader. Raises CommandFailed, KafkaError."""

        async def attempt() -> dict[str, MetadataResponseTopic]:
            found = await self.metadata(names)
            for name in names:
                topic = found.get(name)
                if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise await self._unknown_topic(name)
                check(topic.error_code, f"topic {name}")
            return found

        return await self.patiently(attempt)

    async def topics(self, names: Sequence[str]) -> dict[str, MetadataResponseTopic]:
        """Like `existing`, but every partition must have a leader. Raises CommandFailed, KafkaError."""

        async def attempt() -> dict[str, MetadataResponseTopic]:
            found = await self.existing(names)
            for name in names:
                for partition in found[name].partitions:
                    check(partition.error_code, f"partition {name}-{partition.partition_index}")
            return found

        return await self.patiently(attempt)

    async def topic(self, name: str) -> MetadataResponseTopic:
        """One existing topic whose partitions all have a leader. Raises CommandFailed, KafkaError."""
        return (await self.topics([name]))[name]

    async def create_if_missing(self, name: str) -> bool:
        """Have the broker create a missing topic, as it does for any producer. Returns whether it was created.

        Raises CommandFailed (if the broker's auto.create.topics.enable is false), KafkaError.
        """
        if await self._exists(name):
            return False
        for pause_s in CREATION_PAUSES_S:
            if await self._exists(name, create=True):
                return True
            await asyncio.sleep(pause_s)
        raise await self._unknown_topic(name)

    async def wait_until_created(self, name: str, tell: Callable[[str], None], *, patient: bool) -> bool:
        """Wait until the topic exists. Returns False if it existed already.

        `tell` is called with a line to print before a wait. Unless `patient`, waits at most for the timeout. Raises
        CommandFailed, KafkaError.
        """
        if await self._exists(name):
            return False
        clock = asyncio.get_running_loop().time
        deadline = None if patient else clock() + self.timeout_ms / 1000
        near = nearest_name(name, await self.metadata())
        meant = "" if near is None else f" (did you mean {near}?)"
        until = "" if patient else f", for {self.timeout_ms / 1000:g} s"
        tell(f"waiting for topic {name}, which does not exist yet{meant}{until}")
        pause_s = FIRST_PAUSE_S
        while not await self._exists(name):
            if deadline is not None and clock() + pause_s > deadline:
                raise await self._unknown_topic(name)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
        return True

    async def _exists(self, name: str, *, create: bool = False) -> bool:
        code = (await self.metadata([name], create=create))[name].error_code
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        check(0 if code == ErrorCode.LEADER_NOT_AVAILABLE else code, f"topic {name}")
        return True

    async def _unknown_topic(self, name: str) -> CommandFailed:
        near = nearest_name(name, await self.metadata())
        meant = f"did you mean {near}? If not, " if near is not None else ""
        return CommandFailed(f"there is no topic {name}; {meant}create it with `kpybroker topics create {name}`")

    async def list_offsets(
        self,
        asked: dict[TopicPartition, int],
        *,
        committed: bool = False,
        offline: Reasons | None = None,
    ) -> dict[TopicPartition, int]:
        """The offset for a timestamp in ms, EARLIEST or LATEST, by partition; -1 if no record has that timestamp or a
        later one.

        `committed`: LATEST is the last stable offset (KIP-98). `offline`: if given, partitions whose leader is
        unreachable or returns KAFKA_STORAGE_ERROR do not fail the call, but are added to it with the reason. Raises
        CommandFailed, KafkaError.
        """
        found = await self.list_offsets_and_times(asked, committed=committed, offline=offline)
        return {place: offset for place, (offset, _) in found.items()}

    async def list_offsets_and_times(
        self,
        asked: dict[TopicPartition, int],
        *,
        committed: bool = False,
        offline: Reasons | None = None,
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Like `list_offsets`, but returns (offset, timestamp of that record or -1)."""

        async def attempt() -> dict[TopicPartition, tuple[int, int]]:
            by_leader: dict[int, dict[str, list[int]]] = {}
            for name, topic in (await self.existing(sorted({topic for topic, _ in asked}))).items():
                for partition in topic.partitions:
                    if (name, partition.partition_index) in asked:
                        check(partition.error_code, f"partition {name}-{partition.partition_index}")
                        leader = by_leader.setdefault(partition.leader_id, {})
                        leader.setdefault(name, []).append(partition.partition_index)
            found: dict[TopicPartition, tuple[int, int]] = {}
            for node, topics in by_leader.items():
                request = _offsets_request(topics, asked, self.timeout_ms)
                request.isolation_level = int(committed)
                try:
                    response = await self.ask("ListOffsets", request, node=node)
                except NodeOutOfReach as reason:
                    if offline is None:
                        raise
                    offline.update(
                        {(name, index): str(reason) for name, indexes in topics.items() for index in indexes}
                    )
                    continue
                for answer in response.topics:
                    for row in answer.partitions:
                        if offline is not None and row.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                            offline[answer.name, row.partition_index] = STORAGE_ERROR.format(node)
                            continue
                        check(row.error_code, f"partition {answer.name}-{row.partition_index}")
                        found[answer.name, row.partition_index] = row.offset, row.timestamp
            return found

        return await self.patiently(attempt) if asked else {}


def _offsets_request(
    topics: dict[str, list[int]], asked: dict[TopicPartition, int], timeout_ms: int
) -> list_offsets.Request:
    return list_offsets.Request(
        replica_id=-1,
        timeout_ms=timeout_ms,
        topics=[
            list_offsets.ListOffsetsTopic(
                name=name,
                partitions=[
                    list_offsets.ListOffsetsPartition(partition_index=index, timestamp=asked[name, index])
                    for index in indexes
                ],
            )
            for name, indexes in topics.items()
        ],
    )


def _shown(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
