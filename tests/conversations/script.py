"""Reads the recorded conversations of Apache Kafka's nodes (`oracle/conversations.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.wire.api import Api, by_name
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.plain import as_plain
from kpybroker.wire.records.batch import Batch, whole_batches
from tests.conversations.comparing import records_in

SCRIPTS = Path(__file__).parent.parent / "golden" / "conversations"
NAMES = sorted(file.stem for file in SCRIPTS.glob("*.json"))
METADATA_TOPIC_ID = bytes(15) + b"\x01"


@dataclass(frozen=True)
class Exchange:
    """A request of one node (or CLIENT) to another, and the response; None if there was none. `begun` and `ended` count
    the requests and responses of the scene in their order."""

    source: int
    to: int
    connection: int
    client_id: str
    api: Api
    version: int
    begun: int
    ended: int | None
    request: bytes
    response: bytes | None

    @cached_property
    def asked(self) -> Any:
        """The request as a message."""
        return parse(self.api.request, self.version, self.request)

    @cached_property
    def told(self) -> Any:
        """The response as a message."""
        assert self.response is not None
        return parse(self.api.response, self.version, self.response)

    @cached_property
    def asked_fields(self) -> dict[str, Any]:
        return as_plain(self.asked, self.version)

    @cached_property
    def told_fields(self) -> dict[str, Any]:
        return as_plain(self.told, self.version)

    def __str__(self) -> str:
        return f"{self.api.name} of {self.source} to {self.to} (request {self.begun})"


@dataclass(frozen=True)
class Deed:
    """What happened to a node: "start", "stop" or "kill"."""

    name: str
    node: int
    begun: int


class Script:
    """One scene."""

    def __init__(self, name: str) -> None:
        found = json.loads((SCRIPTS / f"{name}.json").read_text())
        self.cluster_id: str = found["cluster_id"]
        self.settings: dict[int, dict[str, str]] = {int(n): one["settings"] for n, one in found["nodes"].items()}
        self.directory_ids: dict[int, str] = {int(n): one["directory_id"] for n, one in found["nodes"].items()}
        self.deeds = [Deed(one["deed"], one["node"], one["begun"]) for one in found["entries"] if "deed" in one]
        self.exchanges = [_exchange(one) for one in found["entries"] if "deed" not in one]

        self.times_ms = _times(found["entries"])
        """The time of each count, from the beginning of the scene."""

    @cached_property
    def batches(self) -> dict[int, Batch]:
        """The batches of the metadata log by their base offset, as the leaders sent them."""
        found = {}
        for said in self.exchanges:
            if said.api.name == "Fetch" and said.response is not None:
                for topic in said.told.responses:
                    if topic.topic_id == METADATA_TOPIC_ID:
                        for batch in whole_batches(topic.partitions[0].records):
                            found[batch.base_offset] = batch
        return found

    def partition_bytes(self) -> bytes:
        """The log of the topic's partition, as the leaders sent it to followers."""
        found = {}
        for said in self.exchanges:
            if said.api.name == "Fetch" and said.response is not None:
                for topic in said.told.responses:
                    if topic.topic_id != METADATA_TOPIC_ID:
                        for batch in whole_batches(topic.partitions[0].records):
                            found[batch.base_offset] = bytes(batch.view)
        return b"".join(batch for _, batch in sorted(found.items()))

    @cached_property
    def log(self) -> dict[int, dict[str, Any]]:
        """The batches of the metadata log as plain values, by their base offset."""
        return {base: records_in(batch.view)[0] for base, batch in self.batches.items()}

    @cached_property
    def topic_ids(self) -> dict[str, bytes]:
        """Topic name -> id."""
        records = [record for batch in self.log.values() for record in batch["records"]]
        return {one["name"]: one["topic_id"] for one in records if one.get("record") == "TopicRecord"}

    def of(self, node_id: int) -> list[Exchange]:
        """What this node and others said to each other."""
        return [each for each in self.exchanges if (each.source == node_id) != (each.to == node_id)]

    def first_sign(self, deed: Deed) -> int:
        """The count of the first request or response in which a node shows that it stops; else that of the deed."""
        if deed.name != "stop":
            return deed.begun
        for said in self.exchanges:
            is_late = said.begun > deed.begun or (said.ended or 0) > deed.begun
            if (
                is_late
                and said.source == deed.node
                and (
                    said.api.name == "EndQuorumEpoch"
                    or (said.api.name == "BrokerHeartbeat" and said.asked.want_shut_down)
                )
            ):
                return said.begun
            if is_late and said.to == deed.node and said.api.name == "Fetch" and said.ended is not None:
                rows = [row for topic in said.told.responses for row in topic.partitions]
                if any(row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER for row in rows):
                    return said.ended
        return deed.begun

    def begins(self) -> Iterator[tuple[int, int]]:
        """(count, node) of the first that each process says or is asked."""
        for deed in self.deeds:
            if deed.name == "start":
                yield (
                    next(
                        one.begun
                        for one in self.exchanges
                        if one.begun > deed.begun and deed.node in (one.source, one.to)
                    ),
                    deed.node,
                )

    def ends(self) -> Iterator[tuple[int, int]]:
        """(count, node) of the end of each process: after the last response that it gave or got."""
        for deed in self.deeds:
            if deed.name == "start":
                continue
            again = min(
                (one.begun for one in self.deeds if one.node == deed.node and one.begun > deed.begun), default=0
            )
            said = [(one.begun, one.ended or 0) for one in self.exchanges if deed.node in (one.source, one.to)]
            late = [ended for begun, ended in said if ended > deed.begun and (not again or begun < again)]
            yield max(late, default=deed.begun) if deed.name == "stop" else deed.begun, deed.node


def _times(entries: Iterable[dict[str, Any]]) -> dict[int, int]:
    times = {one["begun"]: one["begun_ms"] for one in entries}
    return times | {one["ended"]: one["ended_ms"] for one in entries if one.get("ended") is not None}


def _exchange(one: dict[str, Any]) -> Exchange:
    return Exchange(
        one["from"],
        one["to"],
        one["connection"],
        one["client_id"],
        by_name[one["api"]],
        one["version"],
        one["begun"],
        one["ended"],
        bytes.fromhex(one["request"]),
        None if one["response"] is None else bytes.fromhex(one["response"]),
    )
