"""Loads that measure the cost of TLS, logins and ACLs, compared with Apache Kafka with the same settings and with an
unsecured load."""

import contextlib
import functools
import hashlib
import shutil
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin import ResourceType as AclResourceType

from bench.brokers import broker
from bench.control import create_topic, delete_topic, end_offsets, fresh_name
from bench.librdkafka import BATCH, PARTITIONS, payloads, produce_all
from bench.measure import Better, Brokers, Case, LoadError, Measure
from bench.produce_raw import error_position, produce_frame
from bench.raw import Connection, frame
from bench.records import batch
from bench.target import Cpu, Target
from kpybroker.security.sasl.scram import MECHANISMS, ScramClient
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.rpc import api_versions, sasl_authenticate, sasl_handshake
from oracle.kafka import Kafka
from oracle.target import ServerProcess, steady_port
from oracle.tools import tool
from tests.certificates import sign

TLS, NAMED = "TLS", "NAMED"
USER, PASSWORD = "bench", "of bench"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
THREADS = 4
CONNECTIONS = 8
DEPTH = 10
RULES = 10_000
ACLS_AT_ONCE = 500

hashlib.pbkdf2_hmac = functools.lru_cache(hashlib.pbkdf2_hmac)  # type: ignore[assignment]
"""Clients derive a key only once: the benchmark measures the broker's work."""


class Secured:
    """A started broker with a listener for TLS 1.3 and a listener for logins, and the files of its clients."""

    def __init__(self, name: str, more: dict[str, str]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kpybroker-bench-"))
        self.authority = self.directory / "ca.pem"
        authority = sign("authority")
        self.authority.write_text(authority.chain_pem)
        self.ports = {TLS: steady_port(), NAMED: steady_port()}
        self.server: ServerProcess = broker(name, {})
        shown = f"PLAINTEXT://127.0.0.1:{self.server.port}" + "".join(
            f",{each}://127.0.0.1:{port}" for each, port in self.ports.items()
        )
        controller = f",CONTROLLER://127.0.0.1:{self.server.controller_port}" if isinstance(self.server, Kafka) else ""
        self.server.properties |= {
            "listeners": shown + controller,
            "advertised.listeners": shown,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,NAMED:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(sign("localhost", authority).pem(self.directory / "server.pem")),
            "ssl.enabled.protocols": "TLSv1.3",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.named.plain.sasl.jaas.config": f'{PLAIN_MODULE} user_{USER}="{PASSWORD}";',
            "listener.name.named.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE};",
            **more,
        }
        self.server.__enter__()
        self.target = Target(name, self.server.bootstrap, self.server.pid)

    def close(self) -> None:
        """Stop the broker, and remove its files."""
        self.server.__exit__(None, None, None)
        shutil.rmtree(self.directory, ignore_errors=True)

    def context(self) -> ssl.SSLContext:
        """A client's TLS context."""
        return ssl.create_default_context(cafile=self.authority)

    def connect(self, listener: str) -> socket.socket:
        """A new connection without TLS."""
        opened = socket.create_connection(("127.0.0.1", self.ports[listener]), timeout=30)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def librdkafka(self) -> dict[str, Any]:
        """librdkafka's settings for the listener with TLS."""
        at = f"127.0.0.1:{self.ports[TLS]}"
        return {"bootstrap.servers": at, "security.protocol": "SSL", "ssl.ca.location": str(self.authority)}


class SecureCase(Case):
    """A load that starts its own brokers."""

    family = "security"
    brokers = Brokers.NONE
    more: dict[str, str] = {}

    def __init__(self) -> None:
        self.started: dict[str, Secured] = {}

    def prepare(self, target: Target) -> None:
        self.started[target.name] = Secured(target.name, self.more)

    def clean(self, target: Target) -> None:
        self.started.pop(target.name).close()

    def figures(self, *values: float) -> dict[str, float]:
        return {measure.key: value for measure, value in zip(self.measures, values, strict=True)}


class Produce(SecureCase):
    """librdkafka with its default settings, 1 KiB records, over TLS 1.3."""

    name = "tls-produce"
    count = 150_000
    measures = (
        Measure("tls-produce.rate", "TLS 1.3: librdkafka, 1 KiB", "k/s", Better.HIGHER, 1.0, 1.2),
        Measure("tls-produce.cpu", "… broker CPU", "s/million", Better.LOWER, 1.0, 0.7),
    )

    def slice(self, target: Target) -> dict[str, float]:
        secured = self.started[target.name]
        plain = secured.target
        topic = fresh_name(self.name)
        create_topic(plain, topic, PARTITIONS)
        values = payloads(1024)
        messages = [{"value": values[i % len(values)]} for i in range(BATCH)]
        producer = Producer({**secured.librdkafka(), "queue.buffering.max.messages": 1_000_000})
        producer.list_topics(topic, 10)
        cpu, began = plain.cpu(), time.perf_counter()
        produce_all(producer, topic, messages, self.count)
        elapsed_s, used = time.perf_counter() - began, plain.cpu() - cpu
        stored = sum(end_offsets(plain, topic, PARTITIONS))
        if stored != self.count:
            raise LoadError(f"{target.name} holds {stored} of {self.count} acknowledged records")
        delete_topic(plain, topic)
        return self.figures(self.count / elapsed_s / 1e3, used.per(self.count / 1e6))


class Consume(SecureCase):
    """Read a topic of 1 KiB records from its beginning, over TLS 1.3."""

    name = "tls-consume"
    count = 300_000
    measures = (
        Measure("tls-consume.rate", "TLS 1.3: librdkafka consume 1 KiB", "k/s", Better.HIGHER, 1.0, 1.2),
        Measure("tls-consume.cpu", "… broker CPU", "s/million", Better.LOWER, 1.0, 0.7),
    )
    topic = "tls-consume"

    def prepare(self, target: Target) -> None:
        super().prepare(target)
        secured = self.started[target.name]
        create_topic(secured.target, self.topic, PARTITIONS)
        values = payloads(1024)
        messages = [{"value": values[i % len(values)]} for i in range(BATCH)]
        settings = {"bootstrap.servers": secured.target.bootstrap, "queue.buffering.max.messages": 1_000_000}
        produce_all(Producer(settings), self.topic, messages, self.count)

    def slice(self, target: Target) -> dict[str, float]:
        secured = self.started[target.name]
        consumer = Consumer({**secured.librdkafka(), "group.id": "bench", "enable.auto.commit": False})
        cpu = secured.target.cpu()
        consumer.assign([TopicPartition(self.topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        seen = len(consumer.consume(1, 10))
        began = time.perf_counter()
        while seen < self.count:
            messages = consumer.consume(min(BATCH, self.count - seen), 5)
            if not messages:
                raise LoadError(f"{target.name} returned {seen} of {self.count} records and then nothing for 5 s")
            seen += len(messages)
        elapsed_s, used = time.perf_counter() - began, secured.target.cpu() - cpu
        consumer.close()
        return self.figures(self.count / elapsed_s / 1e3, used.per(self.count / 1e6))


def together(work: Callable[[int], int], threads: int) -> int:
    """Run the work on this many threads; returns the sum of the results. Raises the first failure."""
    done: list[int] = []
    failures: list[Exception] = []

    def run(number: int) -> None:
        try:
            done.append(work(number))
        except (LoadError, OSError) as failure:
            failures.append(failure)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    if failures:
        raise failures[0]
    return sum(done)


def first_answer(opened: socket.socket, request: bytes, at: int) -> bytes:
    """The reply to the first successful request: just after CreateTopics, Kafka refuses some.

    `at`: position of the error code. Raises LoadError after ten seconds of refusals.
    """
    deadline = time.monotonic() + 10
    while True:
        opened.sendall(request)
        size = _exactly(opened, 4)
        reply = size + _exactly(opened, int.from_bytes(size))
        if reply[at : at + 2] == b"\0\0":
            return reply
        if time.monotonic() > deadline:
            raise LoadError(f"returned an error: {reply!r}")
        time.sleep(0.01)


def pipelined(opened: socket.socket, request: bytes, size: int, at: int, seconds: float) -> int:
    """For some seconds, send the request ten at a time and await the replies. Returns the number of replies."""
    many, answered = request * DEPTH, 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        opened.sendall(many)
        replies = _exactly(opened, size * DEPTH)
        for begin in range(0, len(replies), size):
            if replies[begin + at : begin + at + 2] != b"\0\0":
                raise LoadError(f"returned an error: {replies[begin : begin + size]!r}")
        answered += DEPTH
    return answered


def _exactly(opened: socket.socket, size: int) -> bytes:
    parts, left = [], size
    while left:
        part = opened.recv(left)
        if not part:
            raise LoadError("the broker closed the connection")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def small_produce(secured: Secured, connect: Callable[[], socket.socket], seconds: float) -> tuple[float, Cpu, int]:
    """Send the same small Produce over eight connections, ten in flight on each. Returns the seconds, the CPU time and
    the number of replies."""
    topic = fresh_name("small")
    create_topic(secured.target, topic, CONNECTIONS)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(connect()) for _ in range(CONNECTIONS)]

        at = error_position(topic)
        requests = [produce_frame(topic, partition, batch(1, 100)) for partition in range(CONNECTIONS)]
        sizes = [len(first_answer(*pair, at)) for pair in zip(sockets, requests, strict=True)]

        def work(number: int) -> int:
            return pipelined(sockets[number], requests[number], sizes[number], at, seconds)

        cpu, began = secured.target.cpu(), time.perf_counter()
        answered = together(work, CONNECTIONS)
        elapsed_s, used = time.perf_counter() - began, secured.target.cpu() - cpu
    stored = sum(end_offsets(secured.target, topic, CONNECTIONS))
    if stored != answered + CONNECTIONS:
        raise LoadError(f"{secured.target.name} holds {stored} records after {answered + CONNECTIONS} requests")
    delete_topic(secured.target, topic)
    return elapsed_s, used, answered


class SmallProduce(SecureCase):
    """Small Produce over TLS 1.3."""

    name = "tls-small"
    measures = (
        Measure(
            "tls-small.rate", "TLS 1.3: small Produce, 8 connections, 10 in flight", "k/s", Better.HIGHER, 1.0, 1.2
        ),
        Measure("tls-small.cpu", "… broker CPU", "µs/request", Better.LOWER, 1.0, 0.7),
    )

    def slice(self, target: Target) -> dict[str, float]:
        secured = self.started[target.name]
        context = secured.context()

        def connect() -> socket.socket:
            return context.wrap_socket(secured.connect(TLS), server_hostname="127.0.0.1")

        elapsed_s, used, answered = small_produce(secured, connect, 2.0)
        return self.figures(answered / elapsed_s / 1e3, used.per(answered / 1e6))


class Handshakes(SecureCase):
    """A thousand handshakes with TLS 1.3, four at a time, each followed by one request."""

    count = 1000

    def __init__(self, *, resumed: bool) -> None:
        super().__init__()
        self.resumed = resumed
        self.name = "handshakes-resumed" if resumed else "handshakes"
        label = "1,000 handshakes" + (", resumed" if resumed else "")
        self.measures = (
            Measure(f"{self.name}.rate", f"TLS 1.3: {label}", "/s", Better.HIGHER, 1.0, 1.2),
            Measure(f"{self.name}.cpu", "… broker CPU", "ms/handshake", Better.LOWER, 1.0, 0.7),
        )

    def slice(self, target: Target) -> dict[str, float]:
        secured = self.started[target.name]
        hello = frame(18, 3, api_versions.Request(client_software_name="b", client_software_version="1"))

        def work(_: int) -> int:
            context, session, resumed = secured.context(), None, 0
            for _ in range(self.count // THREADS):
                with context.wrap_socket(secured.connect(TLS), server_hostname="127.0.0.1", session=session) as opened:
                    resumed += bool(opened.session_reused)
                    opened.sendall(hello)
                    _exactly(opened, int.from_bytes(_exactly(opened, 4)))
                    session = opened.session if self.resumed else None
            return resumed

        cpu, began = secured.target.cpu(), time.perf_counter()
        reused = together(work, THREADS)
        elapsed_s, used = time.perf_counter() - began, secured.target.cpu() - cpu
        if not self.resumed and reused:
            raise LoadError(f"{reused} handshakes were resumed")
        return self.figures(self.count / elapsed_s, used.per(self.count / 1e3))


class Logins(SecureCase):
    """SCRAM-SHA-256 with 4096 iterations, four at a time; another connection sends ApiVersions all the time."""

    name = "scram-logins"
    count = 2000
    measures = (
        Measure("scram-logins.rate", "SCRAM-SHA-256 logins", "/s", Better.HIGHER, 1.0, 1.2),
        Measure("scram-logins.cpu", "… broker CPU", "ms/login", Better.LOWER, 1.0, 0.7),
        Measure("scram-logins.stall", "… longest wait of another client's request meanwhile", "ms", Better.LOWER),
    )

    def prepare(self, target: Target) -> None:
        super().prepare(target)
        user = ("--entity-type", "users", "--entity-name", USER)
        credential = f"SCRAM-SHA-256=[iterations=4096,password={PASSWORD}]"
        at = self.started[target.name].target.bootstrap
        tool("kafka-configs", "--alter", *user, "--add-config", credential, bootstrap=at).ok()

    def slice(self, target: Target) -> dict[str, float]:
        secured = self.started[target.name]
        over = threading.Event()
        waits_s = [0.0]

        def watch() -> None:
            with Connection(secured.target) as watching:
                while not over.is_set():
                    began = time.perf_counter()
                    request = api_versions.Request(client_software_name="b", client_software_version="1")
                    watching.socket.sendall(frame(18, 3, request))
                    watching.reply()
                    waits_s.append(time.perf_counter() - began)
                    time.sleep(0.001)

        def work(number: int) -> int:
            for each in range(self.count // THREADS):
                with secured.connect(NAMED) as opened:
                    log_in(opened, f"nonce{number}x{each}")
            return self.count // THREADS

        watching = threading.Thread(target=watch)
        watching.start()
        cpu, began = secured.target.cpu(), time.perf_counter()
        try:
            together(work, THREADS)
            elapsed_s, used = time.perf_counter() - began, secured.target.cpu() - cpu
        finally:
            over.set()
            watching.join()
        return self.figures(self.count / elapsed_s, used.per(self.count / 1e3), max(waits_s) * 1e3)


def log_in(opened: socket.socket, nonce: str | None, password: str = PASSWORD) -> None:
    """Log in with SCRAM-SHA-256; without a nonce, with PLAIN. Raises LoadError."""
    mechanism = "PLAIN" if nonce is None else "SCRAM-SHA-256"
    _ask(opened, 17, 1, sasl_handshake.Request(mechanism=mechanism), sasl_handshake.Response, mechanism)
    if nonce is None:
        _token(opened, f"\0{USER}\0{password}".encode(), mechanism)
        return
    client = ScramClient(MECHANISMS[mechanism], USER, password, nonce)
    client.check(_token(opened, client.final(_token(opened, client.first(), mechanism)), mechanism))


def _token(opened: socket.socket, token: bytes, mechanism: str) -> bytes:
    request = sasl_authenticate.Request(auth_bytes=token)
    found: bytes = _ask(opened, 36, 2, request, sasl_authenticate.Response, mechanism).auth_bytes
    return found


def _ask(opened: socket.socket, key: int, version: int, request: Any, response: type[Any], what: str) -> Any:
    sent = frame(key, version, request)
    if key == 17:  # no flexible version: its header has no tagged fields
        at = sent.index(b"\0", 14)
        sent = (len(sent) - 5).to_bytes(4) + sent[4:at] + sent[at + 1 :]
    opened.sendall(sent)
    reply = _exactly(opened, int.from_bytes(_exactly(opened, 4)))
    told = parse(response, version, memoryview(reply), 4 if key == 17 else 5)
    if told.error_code:
        raise LoadError(f"{what} returned error {told.error_code}")
    return told


class Acls(SecureCase):
    """Small Produce of one user that an ACL allows: on a broker with 10,000 ACLs, and on a broker without an
    authorizer."""

    name = "acls"
    measures = (
        Measure("acls.rate", "ACLs: small Produce with 10,000 ACLs", "k/s", Better.HIGHER, 1.0, 1.2),
        Measure("acls.cpu", "… broker CPU", "µs/request", Better.LOWER, 1.0, 0.7),
        Measure("acls.share", "… rate / rate without an authorizer", "%", Better.HIGHER, 95, 100, absolute=True),
    )

    def __init__(self) -> None:
        super().__init__()
        self.without: dict[str, Secured] = {}

    def prepare(self, target: Target) -> None:
        self.without[target.name] = Secured(target.name, {})
        secured = self.started[target.name] = Secured(target.name, AUTHORIZER)
        admin = AdminClient({"bootstrap.servers": secured.target.bootstrap})
        for some in _bindings():
            for future in admin.create_acls(some, request_timeout=60).values():
                future.result(60)

    def clean(self, target: Target) -> None:
        super().clean(target)
        self.without.pop(target.name).close()

    def slice(self, target: Target) -> dict[str, float]:
        rates = []
        for secured in (self.without[target.name], self.started[target.name]):

            def connect(secured: Secured = secured) -> socket.socket:
                opened = secured.connect(NAMED)
                log_in(opened, None)
                return opened

            elapsed_s, used, answered = small_produce(secured, connect, 2.0)
            rates.append(answered / elapsed_s)
        return self.figures(rates[1] / 1e3, used.per(answered / 1e6), 100 * rates[1] / rates[0])


def _bindings() -> Iterator[list[AclBinding]]:
    """ACLs about other topics, hosts and users, and the ACL that allows the load."""

    def rule(name: str, pattern: ResourcePatternType, user: str, host: str) -> AclBinding:
        operation, permission = AclOperation.WRITE, AclPermissionType.ALLOW
        return AclBinding(AclResourceType.TOPIC, name, pattern, f"User:{user}", host, operation, permission)

    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    rules = [rule("bench-", prefixed, USER, "*")]
    for number in range(RULES - 1):
        pattern = prefixed if number % 4 == 0 else literal
        rules.append(rule(f"t{number}", pattern, f"u{number % 100}", "*" if number % 3 else "10.0.0.1"))
    for begin in range(0, RULES, ACLS_AT_ONCE):
        yield rules[begin : begin + ACLS_AT_ONCE]


def cases() -> list[Case]:
    return [
        Produce(),
        Consume(),
        SmallProduce(),
        Handshakes(resumed=False),
        Handshakes(resumed=True),
        Logins(),
        Acls(),
    ]
