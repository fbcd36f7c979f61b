"""The pages of `kpybroker.http.port`: /metrics for Prometheus, /healthz and /readyz for probes.

The port is open before the directories are, and until the node has stopped. /healthz succeeds while the loop runs,
also while logs are recovered after a kill. /readyz succeeds while clients and other brokers can rely on this node: it
is registered and not fenced, in contact with the controller and up to date with the metadata, and it has no failed log
and no hanging disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError
from kpybroker.replication.node.lifecycle import Stage
from kpybroker.server.metrics.access import Access
from kpybroker.server.metrics.http import HttpServer, Page
from kpybroker.stalls import Stalls
from kpybroker.world.stopwatch import perf_counter, thread_time

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.server.metrics.gauges import Gauges
    from kpybroker.server.server import Server
    from kpybroker.world import World

PATHS = ("/metrics", "/healthz", "/readyz")
STALL_CHECK_S = 0.02
"""The interval of the timer. It misses up to this much of a stall."""


class StallWatch:
    """Measures how late the event loop runs a timer that is due many times a second."""

    def __init__(self, stalls: Stalls) -> None:
        self._stalls = stalls
        self._loop = asyncio.get_running_loop()
        self._seen = self._loop.time()
        self._seen_cpu_s = thread_time()
        self._due = self._seen + STALL_CHECK_S
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._measure()
        self._due = self._seen + STALL_CHECK_S
        self._timer = self._loop.call_at(self._due, self._look)

    def _measure(self) -> None:
        before_cpu_s = self._seen_cpu_s
        self._seen, self._seen_cpu_s = self._loop.time(), thread_time()
        self._stalls.late(self._seen - self._due, self._seen_cpu_s - before_cpu_s)

    def take(self) -> float:
        """The longest stall since the last call, in seconds."""
        if self._loop.time() > self._due:
            self._measure()
            self._due = self._seen  # the timer must not count this stall a second time
        return self._stalls.take_worst()

    def stop(self) -> None:
        """Stop measuring."""
        self._timer.cancel()


class Observing:
    """The HTTP pages of one node. Call `start` before the broker opens, `show` when it is open, and `serving` when it
    serves clients."""

    def __init__(self, world: World) -> None:
        answers = (self._metrics, self._health, self._readiness)
        self._http = HttpServer(world.network, dict(zip(PATHS, answers, strict=True)))
        self._stalls = Stalls(perf_counter)
        self._watch = StallWatch(self._stalls)
        self._broker: Broker | None = None
        self._gauges: Gauges | None = None
        self._serves = False
        self._has_caught_up = False
        self._world = world
        self._access: Access | None = None
        self.address = ""
        """host:port, after `start`."""

    async def start(self, config: BrokerConfig) -> None:
        """Listen on the port. Raises ConfigError."""
        assert config.http_port is not None, "started only if kpybroker.http.port is set"
        host = config.http_host
        self._access = Access(self._world, lambda: config if self._broker is None else self._broker.config)
        try:
            port = await self._http.start(host, config.http_port, self._access)
        except OSError as error:
            raise ConfigError(
                f"kpybroker.http.port: cannot listen on {host or '*'}:{config.http_port}: {error.strerror or error}; "
                "choose another one, or 0 for a free one"
            ) from error
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def show(self, broker: Broker, server: Server) -> None:
        """Serve the metrics of this broker and its server from now on."""
        from kpybroker.server.metrics.gauges import Gauges

        self._broker = broker
        self._gauges = Gauges(broker, server, self._stalls)

    def serving(self) -> None:
        """Report the node as ready from now on, unless something is wrong."""
        self._serves = True

    def close(self) -> None:
        """Stop serving."""
        self._serves = False
        self._watch.stop()
        self._http.close()
        if self._access is not None:
            self._access.close()

    # ---- pages

    async def _health(self, headers: Mapping[str, str]) -> Page:
        return Page(200, b"ok\n")

    async def _readiness(self, headers: Mapping[str, str]) -> Page:
        why = "the node is starting" if not self._serves or self._broker is None else why_not_ready(self._broker)
        if why is None and self._broker is not None and not self._has_caught_up:
            why = what_lags(self._broker)
            self._has_caught_up = why is None
        return Page(200, b"ready\n") if why is None else Page(503, f"{why}\n".encode())

    async def _metrics(self, headers: Mapping[str, str]) -> Page:
        if self._gauges is None:
            return Page(503, b"the node is starting\n")
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(headers.get("accept", ""))
        await self._gauges.count(self._watch.take())
        return Page(200, encode(self._gauges.registry), content_type)


def why_not_ready(broker: Broker) -> str | None:
    """The reason why clients and other brokers cannot rely on this node; None if they can."""
    for path in broker.storage.disk_watch.hung:
        return f"the disk of {path} does not respond"
    quorum = broker.quorum
    if not quorum.is_current:
        return "the metadata is not current: the quorum has no known leader, or this node has not caught up with it"
    if quorum.committed < quorum.state.high_watermark:
        return f"the metadata is applied up to {quorum.committed} of {quorum.state.high_watermark}"
    for why in broker.replication.hosting.lost():
        return why
    life = broker.membership.lifecycle
    if life is None:
        return None if "broker" not in broker.config.process_roles else "the broker is not registered"
    if life.stage is not Stage.RUNNING:
        return f"the broker {life.stage.value}"
    if life.fenced:
        return "the controller has fenced this broker"
    if life.quiet_ms > broker.config.broker_session_timeout_ms:
        return f"no controller has responded to this broker's heartbeats for {life.quiet_ms} ms"
    return None


def what_lags(broker: Broker) -> str | None:
    """A text about replicas on this broker that are not in sync; None if all are.

    A rolling restart must wait until they are in sync, because stopping the next node earlier could leave too few
    in-sync replicas. Replicas that a reassignment adds may take hours and do not count. Neither do replicas of
    partitions without a leader.
    """
    lagging = []
    for partition in broker.replication.hosting:
        topic = broker.metadata.image.topics.get(partition.topic)
        if topic is None or partition.index >= len(topic.partitions):
            continue
        state = topic.partitions[partition.index]
        if state.leader >= 0 and broker.node_id not in (*state.isr, *state.adding_replicas):
            lagging.append(partition)
    if not lagging:
        return None
    return f"{len(lagging)} replicas are not in sync yet, {lagging[0].topic}-{lagging[0].index} among them"
