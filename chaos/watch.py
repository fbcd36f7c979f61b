"""Requests latest offsets again and again, like a client that knows the leader epoch (KIP-207, KIP-320)."""

from __future__ import annotations

import threading
import time
from typing import Any

from chaos.history import History, Latest, Place
from kpybroker.wire.rpc import list_offsets
from oracle.asking import Conversation, Door

LATEST = -1
PAUSE_S = 0.1
TIMEOUT_S = 1.0


class Watch(threading.Thread):
    """A thread that requests latest offsets. addresses: node id -> advertised address. door: for TLS and the login."""

    def __init__(
        self, history: History, addresses: dict[int, tuple[str, int]], places: list[Place], door: Door | None
    ) -> None:
        super().__init__(daemon=True)
        self._door = door
        self._history = history
        self._addresses = addresses
        self._places = places
        self._led: dict[Place, tuple[int, int]] = {}
        """Partition -> (epoch, leader): the newest that any broker returned."""
        self._conversations: dict[int, Conversation] = {}
        self._wanted = True
        self.answers = 0
        self.start()

    def run(self) -> None:
        turn = 0
        while self._wanted:
            turn += 1
            self._learn(sorted(self._addresses)[turn % len(self._addresses)])
            for leader in sorted({leader for _, leader in self._led.values() if leader >= 0}):
                self._look(leader)
            time.sleep(PAUSE_S)

    def _asking(self, node_id: int) -> Conversation:
        """Raises OSError."""
        if node_id not in self._conversations:
            self._conversations[node_id] = Conversation(self._addresses[node_id], TIMEOUT_S, self._door)
        return self._conversations[node_id]

    def _hang_up(self, node_id: int) -> None:
        conversation = self._conversations.pop(node_id, None)
        if conversation is not None:
            conversation.close()

    def finish(self) -> None:
        self._wanted = False
        self.join(30)

    def _learn(self, node_id: int) -> None:
        topics = sorted({place.topic for place in self._places})
        try:
            response = self._asking(node_id).partitions_of(topics)
        except OSError:
            self._hang_up(node_id)
            return
        for (topic, partition), row in response.items():
            place = Place(topic, partition)
            self._led[place] = max(self._led.get(place, (-1, -1)), (row.leader_epoch, row.leader_id))

    def _look(self, leader: int) -> None:
        led = {place: epoch for place, (epoch, of) in self._led.items() if of == leader and place in self._places}
        began_s = time.monotonic()
        try:
            response = self._ask(leader, led)
        except OSError:
            self._hang_up(leader)
            return
        ended_s = time.monotonic()
        with self._history.lock:
            for topic in response.topics:
                for row in topic.partitions:
                    place = Place(topic.name, row.partition_index)
                    if not row.error_code:
                        self.answers += 1
                        answer = Latest(began_s, ended_s, led[place], row.offset)
                        self._history.latest.setdefault(place, []).append(answer)

    def _ask(self, leader: int, led: dict[Place, int]) -> Any:
        """Raises OSError."""
        topics = []
        for name in sorted({place.topic for place in led}):
            asks = [
                list_offsets.ListOffsetsPartition(
                    partition_index=place.partition, current_leader_epoch=epoch, timestamp=LATEST
                )
                for place, epoch in led.items()
                if place.topic == name
            ]
            topics.append(list_offsets.ListOffsetsTopic(name=name, partitions=asks))
        request = list_offsets.Request(replica_id=-1, isolation_level=0, topics=topics)
        return self._asking(leader).ask("ListOffsets", 9, request, list_offsets.Response)
