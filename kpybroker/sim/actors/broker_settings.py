"""Dynamic broker settings (KIP-226): no value makes a node exit, and DescribeConfigs returns the values that were
set."""

from __future__ import annotations

from kpybroker.config.resource_type import ResourceType
from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import alter_config
from kpybroker.wire.rpc import describe_configs

PACE_S = 3.0
VALUES = {
    "background.threads": ("1", "10"),
    "compression.gzip.level": ("-1", "1", "9"),
    "compression.lz4.level": ("1", "17"),
    "compression.zstd.level": ("-131072", "0", "22"),
    "group.consumer.assignment.interval.ms": ("0", "1000"),
    "group.coordinator.cached.buffer.max.bytes": ("524288", "2147483647"),
    "log.cleaner.backoff.ms": ("0", "9223372036854775807"),
    "log.cleaner.dedupe.buffer.size": ("1800000", "134217728"),
    "log.cleaner.io.buffer.load.factor": ("NaN", "Infinity", "-0.5", "5e-324", "0.9"),
    "log.cleaner.io.buffer.size": ("0", "1", "524288", "2147483647"),
    "log.cleaner.io.max.bytes.per.second": ("0", "5e-324", "-1", "1.7976931348623157E308"),
    "log.cleaner.min.compaction.lag.ms": ("0", "9223372036854775807"),
    "log.cleaner.threads": ("1", "2"),
    "log.flush.interval.messages": ("1", "9223372036854775807"),
    "log.flush.interval.ms": ("-9223372036854775808", "-5", "-1", "0", "1", "9223372036854775807"),
    "log.index.interval.bytes": ("0", "1", "2147483647"),
    "log.index.size.max.bytes": ("4", "12", "2147483647"),
    "log.message.timestamp.before.max.ms": ("9223372036854775807",),
    "log.preallocate": ("true", "false"),
    "log.roll.jitter.ms": ("0", "9223372036854775807"),
    "log.roll.ms": ("1", "1000", "9223372036854775807"),
    "log.segment.bytes": ("1048576", "2147483647"),
    "log.segment.delete.delay.ms": ("0", "9223372036854775807"),
    "max.connection.creation.rate": ("2147483647",),
    "max.connections": ("0", "1", "10000", "2147483647"),
    "max.connections.per.ip": ("0", "1", "10000", "2147483647"),
    "num.io.threads": ("4", "16"),
    "num.network.threads": ("2", "6"),
    "num.recovery.threads.per.data.dir": ("1", "4"),
    "num.replica.fetchers": ("1", "2"),
    "producer.id.expiration.ms": ("86400000", "2147483647"),
    "transaction.partition.verification.enable": ("true", "false"),
}
"""Values at and beyond the bounds. The broker refuses values that it cannot apply or that would shut out all clients.
None of the values shortens logs or makes brokers refuse records of clients, because then no invariant could state which
records must exist."""
SLOW_DISK_VALUES = {
    "log.index.size.max.bytes": ("2147483647",),
    "log.roll.ms": ("1000", "9223372036854775807"),
}
"""The values on slow disks, where these replace those of `VALUES`. With the others, a log begins a segment with each
batch. That takes eight syncs, a quarter of a second on a slow disk, so that transactions exceed their timeout."""
Setting = tuple[str, str]
"""The resource name, which is empty for the whole cluster, and the config name."""


class BrokerSettings(Actor):
    """Runs one client that changes broker settings."""

    name = "settings"
    odds = 0.11
    checks = "the settings of brokers"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.set: dict[Setting, str] = {}
        self.doubtful: set[Setting] = set()

    def start(self) -> None:
        nodes = [str(node.node_id) for node in self.run.setup.nodes]
        client = self.run.client("adjuster")
        values = VALUES | SLOW_DISK_VALUES if self.run.setup.syncs_slowly else VALUES
        self.run.start(client, Adjuster(client, nodes, values, self))

    async def check(self, auditor: SimClient) -> None:
        """Check the settings. The settings of one broker are requested from that broker, as Kafka requires."""
        for (name, key), value in self.set.items():
            if (name, key) in self.doubtful:
                continue
            resource = describe_configs.DescribeConfigsResource(
                resource_type=ResourceType.BROKER, resource_name=name, configuration_keys=[key]
            )
            node_id = int(name) if name else auditor.any_broker()
            response = await auditor.ask(node_id, "DescribeConfigs", describe_configs.Request(resources=[resource]))
            if response.results[0].error_code:
                raise Refused(response.results[0].error_code)
            found = next((row.value for row in response.results[0].configs if row.name == key), None)
            if found != value:
                self.run.history.breach(
                    f"{key} of broker {name!r} was set to {value}, but DescribeConfigs returns {found}"
                )

    def look(self) -> None:
        """Check that no node has exited on its own, unless its disk failed."""
        history = self.run.history
        has_failed = {"disk_full", "disk_error"} & set(self.run.setup.faults) or history.counts.get("fault bad_file")
        if history.counts.get("ended by itself") and not has_failed:
            history.breach("a node ended by itself, but no disk has failed")


class Adjuster:
    """Changes random settings, one after another."""

    def __init__(
        self, client: SimClient, nodes: list[str], values: dict[str, tuple[str, ...]], settings: BrokerSettings
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._values = values
        self._settings = settings

    async def run(self) -> None:
        client, settings = self._client, self._settings
        while not client.stopping:
            key = client.random.choice(list(self._values))
            value, name = client.random.choice(self._values[key]), client.random.choice(("", "", *self._nodes))
            setting = name, key
            try:
                await alter_config(client, ResourceType.BROKER, name, key, value)
                settings.set[setting] = value
                client.note(f"{key} of broker {name!r} is {value}")
                client.history.count("settings changed")
                client.succeeded()
                await client.nap(PACE_S)
            except Refused as refused:
                client.note(f"{key} of broker {name!r} is not {value}: {refused}")
                settings.doubtful.add(setting)
                await client.nap(1.0)
            except Unanswered as failed:
                client.note(f"does not know the value of {key} of broker {name!r}: {failed}")
                settings.doubtful.add(setting)
                await client.nap(1.0)
