"""The metrics of one node, computed at each scrape. The names are those that the JMX exporter gives to Kafka's
metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from kpybroker import __version__
from kpybroker.metadata.image import Image
from kpybroker.server.requests.timing import EVERY, Timing

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.server.server import Server
    from kpybroker.stalls import Stalls

AT_ONCE = 500
"""How many partitions are examined before the event loop serves other requests."""
SECONDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)

LOGS = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"
RAFT = "kafka_server_raft_metrics_"
NETWORK = "kafka_server_socket_server_metrics_"

GAUGES = {
    f"{LOGS}partitioncount": "Partitions with a replica on this broker",
    f"{LOGS}leadercount": "Partitions that this broker leads",
    f"{LOGS}underreplicatedpartitions": "Partitions led here with a replica that is not in sync",
    f"{LOGS}underminisrpartitioncount": "Partitions led here that refuse acks=all because of too few in-sync replicas",
    f"{LOGS}atminisrpartitioncount": "Partitions led here that would refuse acks=all with one replica fewer in sync",
    f"{LOGS}offlinereplicacount": "Replicas on this broker that are offline because of their disk or log",
    "kafka_log_size_bytes": "The total size of all logs of this broker",
    "kafka_log_free_bytes": "Free bytes on the file system of log.dirs; the smallest number if there are several",
    f"{CONTROLLER}activecontrollercount": "1 on the active controller, 0 on other nodes",
    f"{CONTROLLER}offlinepartitionscount": "Partitions without a live leader; 0 except on the active controller",
    f"{CONTROLLER}globalpartitioncount": "Partitions of the cluster; 0 except on the active controller",
    f"{CONTROLLER}globaltopiccount": "Topics of the cluster; 0 except on the active controller",
    f"{CONTROLLER}activebrokercount": "Brokers that are not fenced; 0 except on the active controller",
    f"{CONTROLLER}fencedbrokercount": "Registered brokers that are fenced; 0 except on the active controller",
    f"{CONTROLLER}preferredreplicaimbalancecount": "Partitions without their preferred leader; active controller only",
    f"{RAFT}current_leader": "Node id of the metadata quorum's leader; -1 if there is none",
    f"{RAFT}current_epoch": "Epoch of the metadata quorum",
    f"{RAFT}log_end_offset": "End offset of the metadata log of this node",
    f"{RAFT}high_watermark": "The offset up to which the metadata is committed, as known to this node",
    "kafka_server_broker_metadata_metrics_last_applied_record_offset": "Offset of the last applied metadata record",
    f"{NETWORK}connection_count": "Open connections of clients and other nodes",
    "kpybroker_unusable_settings": "Settings and quotas in the metadata that cannot be applied; the log contains them",
    "kpybroker_scheduled_records_pending": "Scheduled records that this broker will deliver",
    "kpybroker_scheduled_records_lateness_seconds": "How late the earliest record is that was not delivered yet",
    "kpybroker_hung_log_dirs": "Log directories whose disk has not responded for broker.session.timeout.ms",
    "kpybroker_loop_worst_stall_seconds": "The longest stall of the event loop since the last scrape",
}
COUNTERS = {
    f"{LOGS}isrshrinks": "How often the ISR of a partition led here became smaller",
    f"{LOGS}isrexpands": "How often the ISR of a partition led here became larger",
    f"{NETWORK}incoming_byte": "Bytes received",
    f"{NETWORK}outgoing_byte": "Bytes sent",
    f"{NETWORK}connection_creation": "Connections accepted",
    "kpybroker_connections_refused": "Connections refused by a limit such as max.connections or max.connections.per.ip",
    "kpybroker_connections_dropped": "Connections closed at once because of a limit or unread replies",
    "kpybroker_connections_throttled": "Connections delayed and closed because of connection_creation_rate",
    "kpybroker_requests_throttled": "Requests after which the client was throttled by a quota",
    "kpybroker_scheduled_records_delivered": "Scheduled records that this broker has delivered",
    "kpybroker_authorizer_refusals": "Operations that the authorizer refused; the log contains some of them",
    "kpybroker_frames_refused": "Invalid frames, after which the connection was closed",
    "kpybroker_logins_failed": "SASL logins that were refused",
}
REQUESTS = "kafka_network_requestmetrics_requests"
TOTAL_TIME = "kafka_network_requestmetrics_totaltime_seconds"
STALLS = "kpybroker_loop_stalls"
STALL_TIME = "kpybroker_loop_stall_seconds"
ALL_NAMES = (*GAUGES, *(f"{name}_total" for name in (*COUNTERS, REQUESTS, STALLS, STALL_TIME)), TOTAL_TIME)


class Gauges:
    """`count` computes the metrics and `registry` exports them. Request times are measured from node startup on."""

    def __init__(self, broker: Broker, server: Server, stalls: Stalls) -> None:
        self._broker = broker
        self._server = server
        self._stalls = stalls
        self._counted: dict[str, float] = {}
        self._counting = asyncio.Lock()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        times = Histogram(
            TOTAL_TIME,
            f"Time from a request's frame to its response, including waits; measured for one request in {EVERY}",
            ["request"],
            buckets=SECONDS,
            registry=self.registry,
        )
        by_api: dict[str, Histogram] = {}  # because labels() takes as long as observe()

        def observe(api: str, seconds: float) -> None:
            of_api = by_api.get(api)
            if of_api is None:
                of_api = by_api[api] = times.labels(api)
            of_api.observe(seconds)

        server.watch(Timing(observe), stalls)

    async def count(self, stall_s: float) -> None:
        """Compute all metrics. Concurrent scrapes run one after the other."""
        async with self._counting:
            counted = dict.fromkeys((*GAUGES, *COUNTERS), 0.0)
            counted["kpybroker_loop_worst_stall_seconds"] = stall_s
            await self._count_partitions(counted)
            if self._broker.controller.is_active:
                await _count_cluster(self._broker.metadata.image, counted)
            self._count_rest(counted)
            self._counted = counted

    async def _count_partitions(self, counted: dict[str, float]) -> None:
        hosting, events = self._broker.replication.hosting, self._broker.replication.hosting.events
        for number, partition in enumerate(hosting):
            _count_partition(partition, counted)
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        counted[f"{LOGS}partitioncount"] += len(hosting.offline)
        counted[f"{LOGS}offlinereplicacount"] += len(hosting.offline)
        counted[f"{LOGS}isrshrinks"], counted[f"{LOGS}isrexpands"] = events.isr_shrinks, events.isr_expands

    def _count_rest(self, counted: dict[str, float]) -> None:
        broker, server, quorum = self._broker, self._server, self._broker.quorum
        server.count_bytes()
        metrics, authorizer = server.metrics, broker.metadata.standard_authorizer
        scheduled = broker.coordinators.delivery_logs
        counted.update(
            {
                "kafka_log_free_bytes": min(
                    (broker.world.disk.free_bytes(each.path) for each in broker.storage.log_dirs.online), default=0
                ),
                f"{CONTROLLER}activecontrollercount": broker.controller.is_active,
                f"{RAFT}current_leader": quorum.leader_id,
                f"{RAFT}current_epoch": quorum.epoch,
                f"{RAFT}log_end_offset": quorum.end,
                f"{RAFT}high_watermark": quorum.state.high_watermark,
                "kafka_server_broker_metadata_metrics_last_applied_record_offset": broker.metadata.image.offset,
                "kpybroker_scheduled_records_pending": scheduled.pending,
                "kpybroker_scheduled_records_lateness_seconds": scheduled.late_ms / 1000,
                "kpybroker_scheduled_records_delivered": scheduled.delivered,
                "kpybroker_hung_log_dirs": len(broker.storage.disk_watch.hung),
                "kpybroker_unusable_settings": broker.metadata.dynamic.unusable_count,
                f"{NETWORK}connection_count": len(server.connections()),
                f"{NETWORK}incoming_byte": metrics.bytes_received,
                f"{NETWORK}outgoing_byte": metrics.bytes_sent,
                f"{NETWORK}connection_creation": metrics.connections_accepted,
                "kpybroker_connections_refused": metrics.connections_refused,
                "kpybroker_connections_dropped": metrics.connections_dropped,
                "kpybroker_connections_throttled": metrics.connections_throttled,
                "kpybroker_requests_throttled": metrics.requests_throttled,
                "kpybroker_authorizer_refusals": 0 if authorizer is None else authorizer.audit.refusals,
                "kpybroker_frames_refused": metrics.frames_refused,
                "kpybroker_logins_failed": metrics.logins_failed,
            }
        )

    def collect(self) -> Iterator[Metric]:
        """The last computed values, for prometheus_client."""
        version = GaugeMetricFamily("kpybroker_info", "Version and node id", labels=["version", "node_id"])
        version.add_metric([__version__, str(self._broker.node_id)], 1)
        yield version
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(name, text, value=self._counted.get(name, 0))
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(name, text, value=self._counted.get(name, 0))
        requests = CounterMetricFamily(REQUESTS, "Requests received", labels=["request"])
        for api, count in self._server.requests_by_api():
            requests.add_metric([api], count)
        yield requests
        yield _by_cause(STALLS, "Stalls of the event loop of 10 ms or more, by what ran meanwhile", self._stalls.counts)
        yield _by_cause(STALL_TIME, "Seconds of these stalls", self._stalls.seconds)


def _by_cause(name: str, text: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=["cause"])
    for cause, value in values.items():
        family.add_metric([cause], value)
    return family


def _count_partition(partition: Partition, counted: dict[str, float]) -> None:
    counted[f"{LOGS}partitioncount"] += 1
    counted["kafka_log_size_bytes"] += partition.log.size_bytes
    counted[f"{LOGS}offlinereplicacount"] += partition.offline is not None
    if not partition.leads:
        return
    in_sync, replicas = len(partition.isr), len(partition.replicas)
    needed = min(partition.log.settings.min_insync_replicas, replicas)
    counted[f"{LOGS}leadercount"] += 1
    counted[f"{LOGS}underreplicatedpartitions"] += in_sync < replicas
    counted[f"{LOGS}underminisrpartitioncount"] += in_sync < needed
    counted[f"{LOGS}atminisrpartitioncount"] += in_sync == needed


async def _count_cluster(image: Image, counted: dict[str, float]) -> None:
    """Compute the metrics of the whole cluster, which only the active controller has."""
    live = image.live_brokers()
    counted[f"{CONTROLLER}activebrokercount"] = len(live)
    counted[f"{CONTROLLER}fencedbrokercount"] = len(image.brokers) - len(live)
    counted[f"{CONTROLLER}globaltopiccount"] = len(image.topics)
    looked_at = 0
    for topic in image.topics.values():
        for partition in topic.partitions:
            counted[f"{CONTROLLER}globalpartitioncount"] += 1
            # a leader that is not live counts: the metadata keeps the broker of the only in-sync replica as the leader
            counted[f"{CONTROLLER}offlinepartitionscount"] += partition.leader not in live
            counted[f"{CONTROLLER}preferredreplicaimbalancecount"] += partition.leader != partition.replicas[0]
        looked_at += len(topic.partitions)
        if looked_at >= AT_ONCE:
            looked_at = 0
            await asyncio.sleep(0)
