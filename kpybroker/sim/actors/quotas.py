"""Client quotas that change while clients run (KIP-13, KIP-546, KIP-599). Brokers must return and enforce them."""

from __future__ import annotations

from functools import partial

from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.actors.requests import produced
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import ADMIN_LIMIT_S, create_topic
from kpybroker.sim.cluster.setup import TopicSetup
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import alter_client_quotas, describe_client_quotas

KEYS = ("producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate")
RATES = {KEYS[0]: (1000.0, 5000.0, 1e9, 1.7e308), KEYS[1]: (2000.0, 20_000.0, 1e9, 1.7e308), KEYS[2]: (1.0, 10.0)}
"""The quotas that are set. Request percentages are not among them, because they limit real CPU time, which a seed
cannot determine."""
LIMITED: TopicPartition = ("limited", 0)
BURST_BYTES, BURST_RATE, BURSTS_MAX = 30_000, 1000.0, 20
"""One batch of BURST_BYTES is more than the quota BURST_RATE allows in its whole window."""
PACE_S = 3.0
CLIENT_ID = "client-id"
Named = tuple[str | None, str]
"""The client id, which is None for the default, and the quota key."""


async def set_quota(client: SimClient, named: Named, value: float | None) -> None:
    """Set a quota, or remove it. Raises Unanswered, Refused."""
    name, key = named
    entity = alter_client_quotas.EntityData(entity_type=CLIENT_ID, entity_name=name)
    op = alter_client_quotas.OpData(key=key, value=value or 0.0, remove=value is None)
    request = alter_client_quotas.Request(entries=[alter_client_quotas.EntryData(entity=[entity], ops=[op])])
    response = await client.ask(client.any_broker(), "AlterClientQuotas", request, limit_s=ADMIN_LIMIT_S)
    code = response.entries[0].error_code
    if code:
        raise Refused(code)


class Quotas(Actor):
    """Checks that DescribeClientQuotas returns the quotas that were set, and that a client that exceeds its quota after
    the workload is throttled."""

    name = "quotas"
    odds = 0.11
    checks = "the quotas that are set"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.set: dict[Named, float | None] = {}
        """Quotas that were set successfully."""
        self.doubtful: set[Named] = set()

    def preparations(self, founder: SimClient) -> list[Preparation]:
        topic = TopicSetup(LIMITED[0], 1, self.run.setup.replicas, {})
        return [(topic.name, partial(create_topic, founder, topic))]

    def start(self) -> None:
        names = [client.name for client in self.run.clients]
        client = self.run.client("limiter")
        self.run.start(client, Limiter(client, names, self))

    async def check(self, auditor: SimClient) -> None:
        found: dict[Named, float] = {}
        response = await auditor.ask(auditor.any_broker(), "DescribeClientQuotas", describe_client_quotas.Request())
        if response.error_code:
            raise Refused(response.error_code)
        for entry in response.entries or []:
            for each in entry.values:
                found[entry.entity[0].entity_name, each.key] = each.value
        for named, value in self.set.items():
            if named not in self.doubtful and found.get(named) != value:
                self.run.history.breach(
                    f"quota {named} was set to {value}, but DescribeClientQuotas returns {found.get(named)}"
                )


class Limiter:
    """Sets quotas and removes them."""

    def __init__(self, client: SimClient, names: list[str], quotas: Quotas) -> None:
        self._client = client
        self._names = names
        self._quotas = quotas

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            key = client.random.choice(KEYS)
            named = client.random.choice((None, *self._names)), key
            value = client.random.choice((None, *RATES[key]))
            try:
                await self._set(named, value)
                client.succeeded()
                await client.nap(PACE_S)
            except (Unanswered, Refused) as failed:
                client.note(f"does not know the value of quota {named}: {failed}")
                await client.nap(1.0)
        for key in KEYS:  # so that the checks at the end are not throttled
            await self._surely((None, key), None)
        await self._surely((client.name, KEYS[0]), BURST_RATE)
        await self._write_too_much()

    async def _set(self, named: Named, value: float | None) -> None:
        try:
            await set_quota(self._client, named, value)
        except (Unanswered, Refused):
            self._quotas.doubtful.add(named)
            raise
        self._quotas.set[named] = value
        self._client.note(f"quota {named} is {value}")

    async def _surely(self, named: Named, value: float | None) -> None:
        while True:
            try:
                await self._set(named, value)
                return
            except (Unanswered, Refused):
                await self._client.nap(1.0)

    async def _write_too_much(self) -> None:
        client = self._client
        batch = bytes(encode_batch([(None, b"." * BURST_BYTES)], timestamp_ms=client.wall_ms()))
        for _ in range(BURSTS_MAX):
            try:
                _, _, response = await produced(client, LIMITED, batch)
                if response.throttle_time_ms > 0:
                    client.history.count("clients throttled")
                    return
            except (Unanswered, Refused) as failed:
                client.note(f"cannot write: {failed}")
                client.forget_topic(LIMITED[0])
            await client.nap(1.0)
        client.history.breach(f"{client.name} wrote far more than its quota, but was never throttled")
