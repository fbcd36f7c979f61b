"""Sends single requests to a node without a client library."""

import contextlib
import math
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from kpybroker.client.login import RENEWED_AFTER, LoginFailed
from kpybroker.config.login import Login
from kpybroker.security.sasl.plain import PLAIN, plain_token
from kpybroker.security.sasl.scram import BY_TOKEN, MECHANISMS, ScramClient
from kpybroker.wire.api import by_name
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.rpc import describe_quorum, metadata, sasl_authenticate, sasl_handshake

CLIENT_ID = b"oracle"
TIMEOUT_S = 2.0
OLD_HEADER = "ApiVersions"
"""ApiVersions: the response header has no tagged fields in any version."""
METADATA_TOPIC = "__cluster_metadata"
RENEWED_NOT_BEFORE_S = 1.1


class Door(NamedTuple):
    """The settings with which a client connects: TLS, and a login unless it is None."""

    context: ssl.SSLContext
    login: Login | None

    def open(self, address: tuple[str, int], timeout_s: float) -> ssl.SSLSocket:
        """A connection over TLS, without a login. Raises OSError."""
        opened = socket.create_connection(address, timeout=timeout_s)
        try:
            return self.context.wrap_socket(opened, server_hostname=address[0])
        except OSError:
            opened.close()
            raise


def exchange_tokens(
    send: Callable[[bytes], sasl_authenticate.Response], login: Login, extensions: str = ""
) -> sasl_authenticate.Response:
    """Exchange the tokens of a login. Returns the last response. `extensions` are for the first message of SCRAM."""
    if login.mechanism == PLAIN:
        return send(plain_token(login.user, login.password))
    extensions = extensions or (BY_TOKEN if login.by_token else "")
    mechanism, nonce = MECHANISMS[login.mechanism], secrets.token_hex(8)
    client = ScramClient(mechanism, login.user, login.password, nonce, extensions=extensions)
    answer = send(client.first())
    return answer if answer.error_code else send(client.final(answer.auth_bytes))


class Conversation:
    """A connection for one request at a time. It cannot be used any more after it has raised OSError.

    If the login expires, the connection renews it in time (KIP-368). Raises OSError, or LoginFailed if a login is
    refused.
    """

    def __init__(self, address: tuple[str, int], timeout_s: float = TIMEOUT_S, door: Door | None = None) -> None:
        self._login = None if door is None else door.login
        self._renewed_s = math.inf
        self.socket: socket.socket
        if door is None:
            self.socket = socket.create_connection(address, timeout=timeout_s)
            return
        self.socket = door.open(address, timeout_s)
        if door.login is not None:
            try:
                self._log_in(door.login)
            except OSError:
                self.close()
                raise

    def ask(self, name: str, version: int, request: Any, response: Any) -> Any:
        """Send a request and return the parsed response."""
        if self._login is not None and time.monotonic() > self._renewed_s:
            self._log_in(self._login)
        return self._ask(name, version, request, response)

    def _ask(self, name: str, version: int, request: Any, response: Any) -> Any:
        api = by_name[name]
        is_flexible = version >= api.flexible
        head = struct.pack(">hhih", api.key, version, 0, len(CLIENT_ID)) + CLIENT_ID + (b"\0" if is_flexible else b"")
        body = build(request, version)
        self.socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        size = struct.unpack(">i", _exactly(self.socket, 4))[0]
        begin = 5 if is_flexible and name != OLD_HEADER else 4
        return parse(response, version, _exactly(self.socket, size), begin)

    def _log_in(self, login: Login) -> None:
        wanted = sasl_handshake.Request(mechanism=login.mechanism)
        if self._ask("SaslHandshake", 1, wanted, sasl_handshake.Response).error_code:
            raise LoginFailed(f"the node does not offer {login.mechanism}")

        def send(token: bytes) -> sasl_authenticate.Response:
            request = sasl_authenticate.Request(auth_bytes=token)
            answer: sasl_authenticate.Response = self._ask("SaslAuthenticate", 2, request, sasl_authenticate.Response)
            return answer

        answer = exchange_tokens(send, login)
        if answer.error_code:
            raise LoginFailed(answer.error_message)
        lifetime_s = answer.session_lifetime_ms / 1000
        renewed_after_s = max(lifetime_s * RENEWED_AFTER, RENEWED_NOT_BEFORE_S) if lifetime_s else math.inf
        self._renewed_s = time.monotonic() + renewed_after_s

    def partitions_of(self, topics: list[str]) -> dict[tuple[str, int], Any]:
        """(topic, partition) -> its row of Metadata from this node."""
        named = [metadata.MetadataRequestTopic(name=topic) for topic in topics]
        request = metadata.Request(topics=named, allow_auto_topic_creation=False)
        told = self.ask("Metadata", 12, request, metadata.Response)
        return {(topic.name, row.partition_index): row for topic in told.topics for row in topic.partitions}

    def active_controller(self) -> int:
        """The leader of the metadata quorum according to this node; -1 if unknown."""
        quorum = self._quorum()
        return -1 if quorum is None else int(quorum.leader_id)

    def voter_ends(self) -> dict[int, int]:
        """Voter -> the end of its metadata log, according to the leader of the quorum; empty if there is none."""
        quorum = self._quorum()
        return {} if quorum is None else {row.replica_id: row.log_end_offset for row in quorum.current_voters}

    def voters(self) -> dict[int, bytes]:
        """Voter -> its directory id, according to the leader of the quorum; empty if there is none."""
        quorum = self._quorum()
        return {} if quorum is None else {row.replica_id: row.replica_directory_id for row in quorum.current_voters}

    def _quorum(self) -> Any:
        """The row of a DescribeQuorum response; None if the quorum has no leader."""
        topic = describe_quorum.TopicData(topic_name=METADATA_TOPIC, partitions=[describe_quorum.PartitionData()])
        request = describe_quorum.Request(topics=[topic])
        told = self.ask("DescribeQuorum", 2, request, describe_quorum.Response)
        if told.error_code or not told.topics or told.topics[0].partitions[0].error_code:
            return None
        return told.topics[0].partitions[0]

    def close(self) -> None:
        self.socket.close()


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
    with contextlib.closing(Conversation(address, timeout_s)) as conversation:
        return conversation.active_controller()


def partitions_of(
    address: tuple[str, int], topics: list[str], timeout_s: float = TIMEOUT_S
) -> dict[tuple[str, int], Any]:
    """(topic, partition) -> its row of Metadata from the node at `address`. Raises OSError."""
    with contextlib.closing(Conversation(address, timeout_s)) as conversation:
        return conversation.partitions_of(topics)
