"""Sends single requests to a node without a client library."""

import contextlib
import socket
import struct
from typing import Any

from kpybroker.wire.api import by_name
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.rpc import describe_quorum, metadata

CLIENT_ID = b"oracle"
TIMEOUT_S = 2.0
OLD_HEADER = "ApiVersions"
"""ApiVersions: the response header has no tagged fields in any version."""
METADATA_TOPIC = "__cluster_metadata"


class Conversation:
    """A connection for one request at a time. Cannot be used any more after it raises OSError."""

    def __init__(self, address: tuple[str, int], timeout_s: float = TIMEOUT_S) -> None:
        self._socket = socket.create_connection(address, timeout=timeout_s)

    def ask(self, name: str, version: int, request: Any, response: Any) -> Any:
        """Send a request of a flexible version and return the parsed response."""
        head = struct.pack(">hhih", by_name[name].key, version, 0, len(CLIENT_ID)) + CLIENT_ID + b"\0"
        body = build(request, version)
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        size = struct.unpack(">i", _exactly(self._socket, 4))[0]
        return parse(response, version, _exactly(self._socket, size), 4 if name == OLD_HEADER else 5)

    def partitions_of(self, topics: list[str]) -> dict[tuple[str, int], Any]:
        """(topic, partition) -> its row of Metadata from this node."""
        named = [metadata.MetadataRequestTopic(name=topic) for topic in topics]
        request = metadata.Request(topics=named, allow_auto_topic_creation=False)
        told = self.ask("Metadata", 12, request, metadata.Response)
        return {(topic.name, row.partition_index): row for topic in told.topics for row in topic.partitions}

    def close(self) -> None:
        self._socket.close()


def ask(
    address: tuple[str, int], name: str, version: int, request: Any, response: Any, timeout_s: float = TIMEOUT_S
) -> Any:
    """Send one request over a new connection. Raises OSError."""
    with contextlib.closing(Conversation(address, timeout_s)) as conversation:
        return conversation.ask(name, version, request, response)


def _exactly(connection: socket.socket, size_bytes: int) -> bytes:
    found = bytearray()
    while len(found) < size_bytes:
        part = connection.recv(size_bytes - len(found))
        if not part:
            raise ConnectionResetError("the node closed the connection")
        found += part
    return bytes(found)


def active_controller(address: tuple[str, int], timeout_s: float = TIMEOUT_S) -> int:
    """The leader of the metadata quorum according to the node at `address`; -1 if unknown. Raises OSError."""
    topic = describe_quorum.TopicData(topic_name=METADATA_TOPIC, partitions=[describe_quorum.PartitionData()])
    request = describe_quorum.Request(topics=[topic])
    told = ask(address, "DescribeQuorum", 2, request, describe_quorum.Response, timeout_s)
    if told.error_code or not told.topics or told.topics[0].partitions[0].error_code:
        return -1
    return int(told.topics[0].partitions[0].leader_id)


def partitions_of(
    address: tuple[str, int], topics: list[str], timeout_s: float = TIMEOUT_S
) -> dict[tuple[str, int], Any]:
    """(topic, partition) -> its row of Metadata from the node at `address`. Raises OSError."""
    with contextlib.closing(Conversation(address, timeout_s)) as conversation:
        return conversation.partitions_of(topics)
