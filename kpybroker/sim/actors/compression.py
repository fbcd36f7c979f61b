"""Producers that compress records, and topics whose compression.type changes."""

from __future__ import annotations

from random import Random

from kpybroker.config.resource_type import ResourceType
from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.producing import SimProducer
from kpybroker.sim.clients.topic_admin import alter_config
from kpybroker.wire.records.compression import Codec

TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
PACE_S = 5.0


class Compression(Actor):
    """Runs these producers. Their records are checked like those of any producer."""

    name = "compression"
    odds = 0.11

    def start(self) -> None:
        run, random = self.run, Random(f"compression {self.run.setup.seed}")
        topics = sorted({name for name, _ in run.writable})
        place = random.choice(run.writable)
        codecs = tuple(int(codec) for codec in Codec)
        client = run.client("compressor")
        is_idempotent = random.random() < 0.7
        worker = SimProducer(
            client,
            place,
            acks=-1,
            idempotent=is_idempotent,
            pace_s=run.pace_s,
            slows_after=run.slows_after,
            codecs=codecs,
        )
        run.start(client, worker)
        client = run.client("recompressor")
        run.start(client, Recompressor(client, topics))


class Recompressor:
    """Changes compression.type of topics, so that brokers recompress the batches that they receive."""

    def __init__(self, client: SimClient, topics: list[str]) -> None:
        self._client = client
        self._topics = topics

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            topic, value = client.random.choice(self._topics), client.random.choice(TYPES)
            try:
                await alter_config(client, ResourceType.TOPIC, topic, "compression.type", value)
                client.note(f"{topic} has compression.type {value}")
                client.succeeded()
                await client.nap(PACE_S)
            except (Unanswered, Refused) as failed:
                client.note(f"does not know compression.type of {topic}: {failed}")
                await client.nap(1.0)
