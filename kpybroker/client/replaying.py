"""Replays recorded requests: sends them to another cluster, in the recorded order, and compares the errors.

Each recorded connection becomes one connection. A request is sent when all requests have been answered that were
answered before it in the recording, so requests overlap only where they did then.

A cluster assigns some values that later requests contain: topic ids, member ids, generations, producer ids and epochs,
ids of fetch sessions. Where a response contains such a value, later requests are sent with the value from the new
response. Leader epochs are not sent.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kpybroker.client import session
from kpybroker.client.client import PASSING, Client, CommandFailed
from kpybroker.client.peer import Peer
from kpybroker.client.recorded import RecordedRequest, aligned
from kpybroker.config.property_files import read_properties
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.wire import plain
from kpybroker.wire.api import PRODUCE, by_name
from kpybroker.wire.recording import NOT_SENT
from kpybroker.wire.records.batch import split

REQUEST_TIMEOUT_S = 15.0
IN_FLIGHT_MAX = 500
"""At this number of unanswered requests, the next one waits for the first of them."""
LOGIN_APIS = ("SaslHandshake", "SaslAuthenticate")
UNSENT_EPOCHS = ("current_leader_epoch", "last_fetched_epoch")
"""Leader epochs, which differ between clusters; -1 stands for an unknown one."""
BY_GROUP = {"generation_id": "generation", "generation_id_or_member_epoch": "generation", "member_epoch": "epoch"}
ASSIGNED = ("member_id", "session_id")
RETRIED = {code.name for code in (*PASSING, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
"""Errors after which a request is sent again, as clients do, if they were not in the recording: for example, the other
cluster may take longer to create a topic."""
RETRY_AFTER_S, RETRIES_S = 0.1, 5.0
SHOWN = 50

UNREACHABLE = (OSError, KafkaError, CommandFailed, MalformedFrame)
Progress = Callable[[int, int], None]
"""Called with the number of replayed requests, and of all."""


class Replayed(NamedTuple):
    """One request of a replay."""

    request: RecordedRequest
    outcome: str
    """`ok`, the errors in the new response, or why there is none."""
    response_fields: dict[str, Any] | None
    is_compared: bool
    """Whether the recording has the outcome and the request was sent again."""

    @property
    def differs(self) -> bool:
        """Whether the error codes of the two responses differ."""
        return self.is_compared and self.outcome != self.request.outcome


class Replay(NamedTuple):
    """The results of a replay, in the order of the requests."""

    results: list[Replayed]

    @property
    def differences(self) -> list[Replayed]:
        """The requests whose responses have other error codes than in the recording."""
        return [each for each in self.results if each.differs]

    @property
    def not_compared(self) -> list[Replayed]:
        """The requests that could not be sent, or whose response was not recorded."""
        return [each for each in self.results if not each.is_compared]

    def summary(self) -> list[tuple[str, int, int, int, int]]:
        """For each API: its name, and how many requests there were, were the same, differed and were not compared."""
        counts: dict[str, Counter[str]] = {}
        for each in self.results:
            kind = "differ" if each.differs else "same" if each.is_compared else "not compared"
            counts.setdefault(each.request.api, Counter())[kind] += 1
        return [
            (api, each.total(), each["same"], each["differ"], each["not compared"])
            for api, each in sorted(counts.items())
        ]

    def remarks(self) -> list[str]:
        """A line for each of the first differences and for each reason why requests were not compared."""
        lines = [f"{_named(each.request)}: {each.request.outcome}, now {each.outcome}" for each in self.differences]
        if len(lines) > SHOWN:
            lines[SHOWN:] = [f"and {len(lines) - SHOWN} more differences"]
        reasons = Counter((each.request.api, each.outcome) for each in self.not_compared)
        shown = [f"{count} {api} not compared: {why}" for (api, why), count in reasons.most_common(SHOWN)]
        return lines + shown

    def table(self) -> str:
        """The summary and the remarks as text."""
        rows = [("REQUEST", "ALL", "SAME", "DIFFERENT", "NOT COMPARED"), *self.summary()]
        return "\n".join([aligned(rows, rights=range(1, len(rows[0]))), *self.remarks()])


def _named(request: RecordedRequest) -> str:
    return f"{request.api} v{request.version} of {request.client_id or '-'} at {request.at:%H:%M:%S.%f}"


def _is_known(request: RecordedRequest) -> bool:
    """Whether the recording has the outcome of the request."""
    return request.response is not None or request.end == NOT_SENT


def replay(
    requests: Sequence[RecordedRequest], bootstrap: str, properties: Path | None, timeout_s: float = REQUEST_TIMEOUT_S
) -> Replay:
    """Replay in an event loop of its own, which must not be called from another one. Raises CommandFailed,
    ConfigError."""
    found: list[Replay] = []

    async def scenario(client: Client) -> None:
        found.append(await replay_with(client, requests, timeout_s))

    settings = session.NO_PROPERTIES if properties is None else read_properties(properties)
    session.run(scenario, bootstrap, properties=settings)
    return found[0]


async def replay_with(
    client: Client,
    requests: Sequence[RecordedRequest],
    timeout_s: float = REQUEST_TIMEOUT_S,
    progress: Progress = lambda done, total: None,
) -> Replay:
    """Replay with a connected client. Raises CommandFailed if the cluster has lost all brokers."""
    replayer = _Replayer(client, timeout_s)
    try:
        return Replay(await replayer.run(requests, progress))
    finally:
        replayer.close()


class _Sent(NamedTuple):
    """A request in flight."""

    ends_us: float
    """When it was answered in the recording."""
    at: int
    task: asyncio.Task[Replayed]


class _Replayer:
    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._peers: dict[tuple[int, int, str], Peer] = {}
        self._assigned = Assigned(client)
        self._waiting: list[_Sent] = []
        """A heap by `ends_us`."""

    def close(self) -> None:
        for sent in self._waiting:
            sent.task.cancel()
        for peer in self._peers.values():
            peer.close()

    async def run(self, requests: Sequence[RecordedRequest], progress: Progress) -> list[Replayed]:
        await self._client.metadata([])
        tasks: list[asyncio.Task[Replayed] | Replayed] = []
        for at, request in enumerate(requests):
            await self._wait_for(request.at_us)
            sent = await self._send(request)
            tasks.append(sent)
            if isinstance(sent, asyncio.Task):
                ends_us = float("inf") if request.duration_us is None else request.at_us + request.duration_us
                heapq.heappush(self._waiting, _Sent(ends_us, at, sent))
            progress(at + 1, len(requests))
        await self._wait_for(float("inf"))
        return [await each if isinstance(each, asyncio.Task) else each for each in tasks]

    async def _wait_for(self, at_us: float) -> None:
        """Wait for the requests that were answered before this time, and send no more than IN_FLIGHT_MAX at once."""
        while self._waiting and (self._waiting[0].ends_us <= at_us or len(self._waiting) >= IN_FLIGHT_MAX):
            await asyncio.wait([heapq.heappop(self._waiting).task])

    async def _send(self, request: RecordedRequest) -> asyncio.Task[Replayed] | Replayed:
        """Send a request. Returns its task, or the result with the reason why it was not sent."""
        why = _why_not(request)
        if why is not None:
            return Replayed(request, why, None, is_compared=False)
        row = by_name[request.api]
        try:
            peer = await self._peer(request)
        except (OSError, MalformedFrame) as error:
            return Replayed(request, f"cannot connect: {error}", None, is_compared=False)
        low, high = peer.versions.get(row.key, (0, -1))
        if not low <= request.version <= high:
            served = f"v{low} to v{high}" if low <= high else "none"
            why = f"the cluster does not serve v{request.version} ({served})"
            return Replayed(request, why, None, is_compared=False)
        try:
            message = await self._message(request)
        except UNREACHABLE as error:
            return Replayed(request, f"cannot look up a topic: {error}", None, is_compared=False)
        return asyncio.get_running_loop().create_task(self._ask(peer, request, message))

    async def _peer(self, request: RecordedRequest) -> Peer:
        """The connection for a recorded connection. Raises OSError, MalformedFrame."""
        place = request.node, request.connection, request.address
        peer = self._peers.get(place)
        if peer is None or not peer.is_open:
            peer = self._peers[place] = await self._client.dial(request.node, request.client_id or "")
        return peer

    async def _message(self, request: RecordedRequest) -> Any:
        """The request with the other cluster's values. Raises the exceptions in UNREACHABLE."""
        return plain.from_plain(by_name[request.api].request, request.version, await self._assigned.applied(request))

    async def _ask(self, peer: Peer, request: RecordedRequest, message: Any) -> Replayed:
        """Send the request and compare the response."""
        try:
            async with asyncio.timeout(self._timeout_s):
                fields = await self._answer(peer, request, message)
        except TimeoutError:
            return self._without_response(request, f"no response within {self._timeout_s:g} s")
        except UNREACHABLE as error:
            return self._without_response(request, f"no response: {error}")
        if fields is None:
            return self._without_response(request, NOT_SENT)
        self._assigned.learn(request, fields)
        outcome = ", ".join(plain.errors_in(fields)) or "ok"
        if not _is_known(request):
            return Replayed(request, f"its response was not recorded; now {outcome}", fields, is_compared=False)
        return Replayed(request, outcome, fields, is_compared=True)

    async def _answer(self, peer: Peer, request: RecordedRequest, message: Any) -> dict[str, Any] | None:
        """The fields of the response; None if there is none (acks=0). Raises TimeoutError and those in UNREACHABLE."""
        if request.api == PRODUCE.name and message.acks == 0:
            await peer.send(request.api, message, version=request.version)
            return None
        clock = asyncio.get_running_loop().time
        deadline = clock() + RETRIES_S
        while True:
            response = await peer.ask(request.api, message, version=request.version)
            fields = plain.as_plain(response, request.version)
            errors = set(plain.errors_in(fields))
            if not errors or errors - RETRIED or errors <= set(request.errors) or clock() > deadline:
                return fields
            await asyncio.sleep(RETRY_AFTER_S)
            message = await self._message(request)

    def _without_response(self, request: RecordedRequest, why: str) -> Replayed:
        if not _is_known(request):
            return Replayed(request, f"its response was not recorded; now {why}", None, is_compared=False)
        return Replayed(request, why, None, is_compared=True)


def _why_not(request: RecordedRequest) -> str | None:
    """The reason why a request cannot be sent again; None if it can."""
    if request.api in LOGIN_APIS:
        return "logins are not replayed"
    if not request.is_whole:
        return "it was too large to be kept"
    if request.message is None:
        return "it cannot be parsed"
    return None


class Assigned:
    """The values that the other cluster has assigned instead of those in the recording."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._topic_ids: dict[str, str] = {}
        """Topic ids of the other cluster by name."""
        self._values: dict[tuple[str, object], Any] = {}
        """By kind and recorded value."""

    async def applied(self, request: RecordedRequest) -> dict[str, Any]:
        """The fields of a request, with the other cluster's values. Raises KafkaError, OSError, CommandFailed."""
        ids = {each: await self._topic_id(request.topic_names[each]) for each in _ids(request)}
        group = request.fields.get("group_id")
        fields: dict[str, Any] = self._applied(request.fields, group, ids)
        return fields

    async def _topic_id(self, name: str) -> str | None:
        """The id of a topic; None if it does not exist."""
        found = self._topic_ids.get(name)
        if found is None:
            topic = (await self._client.metadata([name])).get(name)
            found = None if topic is None or topic.error_code else plain.uuid_text(topic.topic_id)
            if found is not None:
                self._topic_ids[name] = found
        return found

    def _applied(self, value: Any, group: object, ids: dict[str, str | None]) -> Any:
        if isinstance(value, list):
            return [self._applied(each, group, ids) for each in value]
        if not isinstance(value, dict):
            return value
        fields = {name: self._value(name, each, group, ids) for name, each in value.items()}
        for prefix in ("", "v3_and_below_"):
            names = f"{prefix}producer_id", f"{prefix}producer_epoch"
            if names[0] in value and names[1] in value:
                fields.update(zip(names, self._producer(*(value[name] for name in names)), strict=True))
        return fields

    def _value(self, name: str, value: Any, group: object, ids: dict[str, str | None]) -> Any:
        if isinstance(value, dict | list):
            return self._applied(value, group, ids)
        if name in UNSENT_EPOCHS:
            return -1
        if name == "topic_id":
            return ids.get(value) or value
        if name in BY_GROUP:
            return self._values.get((BY_GROUP[name], (group, value)), value)
        if name == "records" and isinstance(value, bytes):
            return self._renamed(value)
        return self._values.get((name, value), value) if name in ASSIGNED else value

    def _renamed(self, records: bytes) -> bytes:
        """The batches with the other cluster's producer ids and epochs."""
        try:
            batches = split(records)
        except KafkaError:
            return records
        for batch in batches:
            known = self._producer(batch.producer_id, batch.producer_epoch)
            if known != (batch.producer_id, batch.producer_epoch):
                batch.rename_producer(*known)
        return b"".join(batch.view for batch in batches)

    def _producer(self, producer_id: int, epoch: int) -> tuple[int, int]:
        """The other cluster's producer id and epoch."""
        known: tuple[int, int] | None = self._values.get(("producer", (producer_id, epoch)))
        return known or (producer_id, epoch)

    def learn(self, request: RecordedRequest, answer: dict[str, Any]) -> None:
        """Learn the values in the two responses to one request."""
        recorded, group = request.response_fields or {}, request.fields.get("group_id")
        if request.api in ("DeleteTopics", "CreateTopics"):
            self._topic_ids.clear()
        for name in ASSIGNED:
            if recorded.get(name) and answer.get(name):
                self._values[name, recorded[name]] = answer[name]
        for name, kind in BY_GROUP.items():
            if name in recorded and name in answer:
                self._values[kind, (group, recorded[name])] = answer[name]
        before, after = ((each.get("producer_id", -1), each.get("producer_epoch", -1)) for each in (recorded, answer))
        if before[0] >= 0 and after[0] >= 0:
            self._values["producer", before] = after


def _ids(request: RecordedRequest) -> Iterable[str]:
    return (each for each in request.topic_ids if each in request.topic_names)
