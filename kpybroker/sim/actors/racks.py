"""Consumers with a rack id, which fetch from a follower in their rack (KIP-392)."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.client import Refused, SimClient
from kpybroker.sim.clients.consuming import Consumer
from kpybroker.sim.cluster.setup import Setup
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import fetch

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_AGAIN_ODDS = 0.1
"""The probability that a consumer returns to the leader, as real consumers do with every metadata refresh."""


def rack_of(node_id: int) -> str:
    return f"rack{node_id}"


class Racks(Actor):
    """Each broker has its own rack, and a consumer is in one of them. It must read the same records as from the
    leader."""

    name = "racks"
    odds = 0.11

    @classmethod
    def suits(cls, setup: Setup) -> bool:
        return len(setup.nodes) > 1

    @classmethod
    def draw(cls, setup: Setup, random: Random) -> Setup:
        nodes = tuple(
            replace(
                node,
                properties={
                    **node.properties,
                    "broker.rack": rack_of(node.node_id),
                    "replica.selector.class": SELECTOR,
                },
            )
            for node in setup.nodes
        )
        return replace(setup, nodes=nodes)

    def start(self) -> None:
        run = self.run
        random = Random(f"racks {run.setup.seed}")
        client = run.client("neighbour")
        rack_id = rack_of(random.choice(run.setup.nodes).node_id)
        run.start(client, NearbyConsumer(client, list(run.writable), rack_id=rack_id, pace_s=run.pace_s))


class NearbyConsumer(Consumer):
    """Fetches from the preferred read replica until a request fails or the consumer returns to the leader."""

    def __init__(self, client: SimClient, places: list[TopicPartition], *, rack_id: str, pace_s: float) -> None:
        super().__init__(client, places, max_wait_ms=100, pace_s=pace_s)
        self._rack_id = rack_id
        self._preferred: dict[TopicPartition, int] = {}

    async def fetch(self, place: TopicPartition) -> None:
        """Send one Fetch to the leader or the preferred read replica. Raises Unanswered, Refused."""
        client, (name, index) = self._client, place
        position = self.positions[place]
        leader = await client.leader(name, index)
        if client.random.random() < LEADER_AGAIN_ODDS:
            self._preferred.pop(place, None)
        node_id = self._preferred.pop(place, leader.node_id)
        row = fetch.FetchPartition(
            partition=index,
            current_leader_epoch=leader.epoch,
            fetch_offset=position,
            partition_max_bytes=client.random.choice(self._bytes),
        )
        topic = fetch.FetchTopic(topic=name, topic_id=leader.topic_id, partitions=[row])
        request: Any = fetch.Request(max_wait_ms=self._max_wait_ms, min_bytes=1, topics=[topic], rack_id=self._rack_id)
        response = await client.ask(node_id, "Fetch", request)
        if response.error_code:
            raise Refused(response.error_code)
        answer = response.responses[0].partitions[0]
        if answer.error_code:  # also happens if a follower lags behind; the next Fetch is sent to the leader
            raise Refused(answer.error_code)
        if answer.preferred_read_replica >= 0:
            self._send_away(place, answer.preferred_read_replica, leader.node_id)
            return
        self._take(place, position, leader.epoch, answer)
        if node_id != leader.node_id:
            self._preferred[place] = node_id
            client.history.count("fetched from a follower", self.positions[place] - position)

    def _send_away(self, place: TopicPartition, node_id: int, leader_id: int) -> None:
        if rack_of(node_id) != self._rack_id or node_id == leader_id:
            self._client.history.breach(
                f"{self._client.name} in {self._rack_id} got node {node_id} as preferred read replica of {place}"
            )
        self._preferred[place] = node_id
