"""Puts kpybroker in the place of one node of a recorded scene: a whole node in virtual time, whose peers say what the
nodes of Apache Kafka said.

The script is played in the recorded order of requests and responses. A request to the node is sent, and its response is
compared with Kafka's. A request of the node gets the recorded response to Kafka's request, and is compared with that
request. Virtual time passes at most as in the recording, and while the node is waited for.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple

from kpybroker.raft.log.identity import FINALIZED_AT_FORMAT
from kpybroker.sim.cluster.cluster import Process, SimMachine
from kpybroker.sim.cluster.setup import NodeSetup
from kpybroker.sim.world.history import History
from kpybroker.sim.world.loop import Owner, VirtualLoop
from kpybroker.sim.world.network import Fabric, SimNetwork
from kpybroker.sim.world.wires import Weather
from kpybroker.storage.dirs.formatting import Format, decode_id, format_directory
from kpybroker.wire.api import by_key
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.frame import parse_request_header
from kpybroker.wire.plain import as_plain, from_plain
from kpybroker.wire.records.batch import whole_batches
from oracle.tape import CLIENT, FIRST_CONTROLLER, advertised, hidden, port_of
from tests.conversations.answers import (
    METADATA_FETCH,
    api_versions_of_a_broker,
    as_vote,
    is_idle,
    is_same_vote,
    says_who_leads,
    steady,
    stream,
)
from tests.conversations.callers import Callers
from tests.conversations.comparing import Shifts, differences, ordered, with_records_opened
from tests.conversations.lines import Arrival, Line
from tests.conversations.script import (
    Deed,
    Exchange,
    Script,
)

PATIENCE_S = 3.0
"""The virtual time for which the script waits for a response of the node."""
LATE_S = 20.0
"""The virtual time after which the script goes on without a request of the node."""
SETTLED_S = 0.005
"""The least virtual time between two steps, in which the node does what follows from the first."""
PAUSE_MAX_S = 0.3
"""The most virtual time between two steps. Polls that say nothing new are not in the recording, and the node must not
take their absence for the end of a peer."""
POLL_S = 0.5
"""The time after which Kafka answers a Fetch of the metadata log for which it has nothing."""
DIRECTORY = "/data"
SHIFTED = (METADATA_FETCH, "BrokerRegistration", "BrokerHeartbeat", "AlterPartition", "AllocateProducerIds")
"""What contains offsets of the metadata log."""
PROMPT_S = {"ControllerRegistration": 0.5, "AddRaftVoter": 4.0}
"""Requests that the node sends at a time of its own: the virtual time for which the script waits for them."""


class Difference(NamedTuple):
    """`what`: API, "request" or "response", and the path of the field."""

    what: str
    said: Exchange
    kafka: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.what} (request {self.said.begun}): Kafka {self.kafka!r}, ours {self.ours!r}"


@dataclass
class Report:
    """What differed. `unsent`: requests of Kafka that the node did not send; `unasked`: requests of the node that Kafka
    did not send."""

    differences: list[Difference] = field(default_factory=list)
    unsent: list[Exchange] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """Requests to the node that it answered only after something that follows in the script."""
    unheard: list[str] = field(default_factory=list)
    """Requests to the node that came after its process had ended."""
    problems: list[str] = field(default_factory=list)
    compared: int = 0


class Replay:
    """The node in seat `seat` of a scene."""

    def __init__(
        self, script: Script, seat: int, moved: dict[int, int], *, follows: bool = True, last: int | None = None
    ) -> None:
        """`moved`: the records of Kafka's log that our node writes elsewhere, see `Shifts`; `follows`: whether requests
        are sent with the offsets of our log. `last`: the count of the last request or response that is played."""
        self.script, self.seat, self.last = script, seat, last
        self.shifts = Shifts(moved if follows else {})
        self.log = _log(script, Shifts(moved))
        """The batches of Kafka's log by their offset in ours."""
        self.has_stopped_sooner = False
        self.report = Report()
        self.loop = VirtualLoop()  # type: ignore[abstract]  # sockets, signals and processes have no place in it
        self.loop.on_problem = lambda owner, text, raised: self.report.problems.append(f"{owner}: {text}: {raised!r}")
        history = History(self.loop.time, keeps_trace=True)
        self.history = history
        self.fabric = Fabric(self.loop, Random(1), history, Weather(0.0001, 0.0, 0.0, 0.0, 0.0))
        self.machine = SimMachine(self._setup(), 1, self.loop, self.fabric, history)
        self._format()
        self._owners = {node: Owner(f"scripted {node}") for node in (*script.settings, CLIENT) if node != seat}
        self._listeners: dict[int, Any] = {}
        self._lines: dict[int, list[Line]] = defaultdict(list)
        """The connections of each peer."""
        self._callers = Callers(self.fabric, self._owners, (advertised(seat), port_of(seat)))
        self._told: dict[Exchange, asyncio.Future[bytes]] = {}
        self._arrived: dict[tuple[int, str], deque[Arrival]] = defaultdict(deque)
        self._late: dict[tuple[int, str], deque[Exchange]] = defaultdict(deque)
        """Requests of Kafka that the node has not sent in time. They are answered when they come."""
        self._heard = asyncio.Event()
        self._latest: dict[tuple[int, str], tuple[dict[str, Any], bytes]] = {}
        self._stopping: asyncio.Task[None] | None = None
        self.ids: dict[int, int] = {}
        """Kafka's id of a fetch session -> ours."""

    def bytes_of(self, partition: str) -> bytes:
        """The first segment of a partition on the node's disk."""
        return bytes(self.machine.storage.file(f"{DIRECTORY}/{partition}/00000000000000000000.log").content)

    # ---- the node

    def _setup(self) -> NodeSetup:
        settings = self.script.settings[self.seat]
        node = settings["node.id"]
        more = {"log.dirs": DIRECTORY, "kpybroker.cluster.id": self.script.cluster_id}
        if "controller.quorum.voters" not in settings and "controller" in settings["process.roles"]:
            first = f"{node}@{advertised(self.seat)}:{port_of(self.seat)}:{self.script.directory_ids[self.seat]}"
            more["kpybroker.initial.controllers"] = first if self.seat == min(self.script.settings) else "none"
        return NodeSetup(self.seat, advertised(self.seat), {**settings, **more})

    def _format(self) -> None:
        """Format the directory with the recorded id, unless the settings name it."""
        if "kpybroker.initial.controllers" in self.machine.setup.properties and self.seat == min(self.script.settings):
            return
        world = Process(self.machine, 0, self.machine.storage).world
        world.disk.mkdir(DIRECTORY)
        format_directory(
            world,
            DIRECTORY,
            node_id=self.seat,
            cluster_id=self.script.cluster_id,
            directory_id=decode_id(self.script.directory_ids[self.seat]),
            wanted=Format(FINALIZED_AT_FORMAT, None),
            has_metadata=True,
        )

    # ---- the course of the scene

    def run(self) -> Report:
        """Play the whole script."""
        try:
            self.loop.run_until_complete(self._play())
        finally:
            self.machine.wanted = False
            self.machine.kill("is switched off")
            for owner in self._owners.values():
                owner.alive = False
                self.loop.bury(owner)
            self.loop.bury(self.loop.simulation)
            self.loop.close()
        return self.report

    async def _play(self) -> None:
        before_ms = 0
        for count, _, act in sorted(self._acts(), key=lambda act: act[:2]):
            if self.last is not None and count > self.last:
                break
            pause_s = (self.script.times_ms[count] - before_ms) / 1000
            await asyncio.sleep(min(max(pause_s, SETTLED_S), PAUSE_MAX_S))
            before_ms = self.script.times_ms[count]
            await act()
        self._note_unsent()
        self.report.problems += [
            f"{said}: no response" for said, told in self._told.items() if self._is_open(said, told)
        ]
        for (peer, name), arrivals in self._arrived.items():
            self.report.unasked += [f"{name} to {peer}" for each in arrivals if each.line.is_open]

    def _acts(self) -> Iterator[tuple[int, int, Callable[[], Awaitable[None]]]]:
        """(count, rank, act): what happens in the order of the recording."""
        for deed in self.script.deeds:
            count = self.script.first_sign(deed) if deed.node == self.seat else deed.begun
            yield count, -1, partial(self._do, deed)
        for count, node in self.script.begins():
            if node != self.seat:
                yield count, -1, partial(self._listen, node)
        for count, node in self.script.ends():
            if node != self.seat:
                yield count, 1, partial(self._hang_up, node)
        for said in self.script.of(self.seat):
            if said.api.name == "ApiVersions" and said.source == self.seat:
                continue
            if said.to == self.seat:
                yield said.begun, 0, partial(self._ask, said)
                if said.ended is not None:
                    yield said.ended, 0, partial(self._compare_told, said)
            elif said.ended is not None:
                yield said.ended, 0, partial(self._answer, said)

    async def _do(self, deed: Deed) -> None:
        if deed.node != self.seat:
            return
        if deed.name == "start":
            if self._stopping is not None:
                await self._stopping
            self._stopping = None
            self._forget()
            self.machine.start()
        elif deed.name == "kill":
            self.machine.kill()
        else:
            self.has_stopped_sooner = True
            self._stopping = self.loop.create_task(self.machine.stop())

    def _note_unsent(self) -> None:
        self.report.unsent += [said for late in self._late.values() for said in late]
        self._late.clear()

    def _forget(self) -> None:
        self._note_unsent()
        self._arrived.clear()
        self._latest.clear()

    async def _listen(self, node: int) -> None:
        owner = self._owners[node]
        with self.loop.acting(owner):
            self._listeners[node] = [
                await SimNetwork(self.fabric, host, owner).listen(lambda: self._accept(node), host, port_of(node))
                for host in (advertised(node), hidden(node))
            ]

    def _accept(self, node: int) -> Line:
        line = Line(lambda line, frame: self._arrive(node, line, frame))
        self._lines[node].append(line)
        return line

    async def _hang_up(self, node: int) -> None:
        """The process of a peer has ended."""
        for listener in self._listeners.pop(node):
            listener.close()
        for line in self._lines.pop(node, []):
            line.transport.close()
        self._callers.hang_up(node)
        for key in [key for key in self._arrived if key[0] == node]:
            del self._arrived[key]

    def _is_open(self, said: Exchange, told: asyncio.Future[bytes]) -> bool:
        return self.last is None and said.ended is not None and not told.done() and self._callers.is_open(said)

    # ---- requests to the node

    async def _ask(self, said: Exchange) -> None:
        """Send a recorded request."""
        told = await self._callers.send(said, lambda: self._translated(said), self._has_stopped)
        if told is None:
            self.report.unheard.append(str(said))
        else:
            self._told[said] = told

    def _has_stopped(self) -> bool:
        return self._stopping is not None and self._stopping.done()

    def _translated(self, said: Exchange) -> bytes:
        """The request, with our ids and offsets in the place of Kafka's."""
        fields = said.asked_fields
        if self.seat >= FIRST_CONTROLLER and stream(said.api, said.asked) in SHIFTED:
            fields = self.shifts.of(fields)
        if said.api.name == "Fetch":
            fields = {**fields, "session_id": self.ids.get(fields["session_id"], fields["session_id"])}
        body = build(from_plain(said.api.request, said.version, fields), said.version)
        for kafka, ours in self._topic_ids():
            body = body.replace(kafka, ours)
        return body

    def _topic_ids(self) -> list[tuple[bytes, bytes]]:
        """(Kafka's id, ours) of the topics that our node has created as the controller."""
        node = self.machine.node
        if self.seat < FIRST_CONTROLLER or node is None:
            return []
        made = node.broker.metadata.image.topics
        return [(known, made[name].id) for name, known in self.script.topic_ids.items() if name in made]

    async def _compare_told(self, said: Exchange) -> None:
        """Wait for the response, and compare it."""
        if said not in self._told:
            return
        told = self._told[said]
        await asyncio.wait([told], timeout=PATIENCE_S)
        if told.done():
            self._check_told(said, told.result())
        else:  # it may need what comes later in the script
            self.report.late.append(str(said))
            told.add_done_callback(lambda told: None if told.cancelled() else self._check_told(said, told.result()))

    def _check_told(self, said: Exchange, body: bytes) -> None:
        for kafka, ours in self._topic_ids():
            body = body.replace(ours, kafka)
        told = parse(said.api.response, said.version, body)
        fields = as_plain(told, said.version)
        if said.api.name == "Fetch" and said.told.session_id and told.session_id:
            known = self.ids.setdefault(said.told.session_id, told.session_id)
            if known == told.session_id:
                fields["session_id"] = said.told.session_id
        self._compare(f"{said.api.name} response", said, said.told_fields, fields)

    # ---- requests of the node

    def _arrive(self, node: int, line: Line, frame: bytes) -> None:
        header, position = parse_request_header(memoryview(frame))
        api = by_key[header.api_key]
        message = parse(api.request, header.api_version, frame[position:])
        fields = as_plain(message, header.api_version)
        arrival = Arrival(line, api, header.api_version, header.correlation_id, fields)
        if api.name == "ApiVersions":
            arrival.answer(self._versions_of(node, header.api_version))
            return
        key = node, stream(api, message)
        self._arrived[key].append(arrival)
        self._heard.set()
        if self._late[key] and (found := self._match(self._late[key][0], key)) is not None:
            self._reply(self._late[key].popleft(), key, found)
            return
        if key[1] == METADATA_FETCH:
            self.loop.at_for(self.loop.simulation, self.loop.time() + POLL_S, self._repeat, key, arrival)
        elif self._known(key, arrival) is not None:
            self.loop.soon_for(self.loop.simulation, self._repeat, key, arrival)

    def _known(self, key: tuple[int, str], arrival: Arrival) -> bytes | None:
        """The response to a poll that says nothing new."""
        latest = self._latest.get(key)
        if latest is not None and latest[0] == steady(arrival.api.name, arrival.fields):
            return latest[1]
        if key[1] != METADATA_FETCH:
            return None
        for said in self.script.of(self.seat):
            if said.ended and (said.to, stream(said.api, said.asked)) == key and is_idle(said):
                one, other = (each["topics"][0]["partitions"][0] for each in (said.asked_fields, arrival.fields))
                if all(one[name] == other[name] for name in ("fetch_offset", "current_leader_epoch")):
                    return said.response
        return None

    def _repeat(self, key: tuple[int, str], arrival: Arrival) -> None:
        """Answer a poll that says nothing new, unless the script has answered it."""
        known = self._known(key, arrival)
        if arrival in self._arrived[key] and known is not None:
            self._arrived[key].remove(arrival)
            arrival.answer(known)

    def _served(self, said: Exchange, arrival: Arrival) -> bytes:
        """The recorded response to a Fetch of the metadata log, with the same end if our node asks from elsewhere."""
        assert said.response is not None
        row = said.told.responses[0].partitions[0]
        wanted = arrival.fields["topics"][0]["partitions"][0]["fetch_offset"]
        asked = said.asked.topics[0].partitions[0].fetch_offset
        if wanted == asked or row.error_code or row.snapshot_id is not None:
            return said.response
        told = parse(said.api.response, said.version, said.response)
        end = max((batch.next_offset for batch in whole_batches(row.records)), default=asked)
        served = [batch for base, batch in sorted(self.script.batches.items()) if wanted <= base < end]
        told.responses[0].partitions[0].records = b"".join(bytes(batch.view) for batch in served)
        return build(told, said.version)

    def _versions_of(self, node: int, version: int) -> bytes:
        asked = [each for each in self.script.exchanges if each.api.name == "ApiVersions" and each.to == node]
        known = next((each.told for each in asked if each.ended is not None), None)
        return build(api_versions_of_a_broker() if known is None else known, version)

    async def _answer(self, said: Exchange) -> None:
        """Wait for the node's request, compare it with Kafka's, and send Kafka's response."""
        key = said.to, stream(said.api, said.asked)
        if self._is_repeated(said, key):
            return
        late = self._late[key]
        arrival = None if late else await self._awaited(said, key)
        if arrival is None:
            late.append(said)
        else:
            self._reply(said, key, arrival)

    def _reply(self, said: Exchange, key: tuple[int, str], arrival: Arrival) -> None:
        if arrival.api is not said.api:
            arrival.answer(as_vote(said, arrival))
            return
        assert said.response is not None
        arrival.answer(self._served(said, arrival) if key[1] == METADATA_FETCH else said.response)
        if said.api.name == "Fetch" and not is_idle(said):
            self._latest.pop(key, None)
        else:
            self._latest[key] = steady(said.api.name, arrival.fields), said.response
        if arrival.version != said.version:
            self._differ(f"{said.api.name} request version", said, said.version, arrival.version)
            return
        self._compare(f"{said.api.name} request", said, said.asked_fields, arrival.fields)

    async def _awaited(self, said: Exchange, key: tuple[int, str]) -> Arrival | None:
        """The node's request for which the script has this response; None if it does not come in time."""
        deadline = self.loop.time() + PROMPT_S.get(said.api.name, LATE_S)
        while True:
            self._heard.clear()
            if (found := self._match(said, key)) is not None:
                return found
            try:
                async with asyncio.timeout_at(deadline):
                    await self._heard.wait()
            except TimeoutError:
                return None

    def _match(self, said: Exchange, key: tuple[int, str]) -> Arrival | None:
        for each in self._arrived[key]:
            if each.line.is_open and is_same_vote(said, each):
                self._arrived[key].remove(each)
                return each
        for each in self._looking(said):
            self._arrived[said.to, "Vote"].remove(each)
            if says_who_leads(said):
                return each
            each.answer(as_vote(said, each))
        return None

    def _looking(self, said: Exchange) -> list[Arrival]:
        """The pre-votes with which the node looks for the leader. Kafka's nodes look for it with a Fetch."""
        if stream(said.api, said.asked) != METADATA_FETCH:
            return []
        asked = [each for each in self._arrived[said.to, "Vote"] if each.line.is_open]
        return [each for each in asked if each.fields["topics"][0]["partitions"][0]["pre_vote"]]

    def _is_repeated(self, said: Exchange, key: tuple[int, str]) -> bool:
        """Whether Kafka sent a heartbeat that says nothing new."""
        if said.api.name != "BrokerHeartbeat" or key not in self._latest:
            return False
        fields, response = self._latest[key]
        return fields == steady(said.api.name, said.asked_fields) and response == said.response

    # ---- comparisons

    def _compare(self, what: str, said: Exchange, kafka: dict[str, Any], ours: dict[str, Any]) -> None:
        self.report.compared += 1
        if what == "Fetch response":
            kafka, ours = with_records_opened(kafka), with_records_opened(ours)
        if self.seat >= FIRST_CONTROLLER and stream(said.api, said.asked) in SHIFTED and said.to == self.seat:
            kafka = self.shifts.of(kafka)
        for path, one, other in differences(ordered(kafka), ordered(ours)):
            self._differ(f"{what} {path}", said, one, other)

    def _differ(self, what: str, said: Exchange, kafka: Any, ours: Any) -> None:
        self.report.differences.append(Difference(what, said, kafka, ours))


def _log(script: Script, shifts: Shifts) -> dict[int, Any]:
    return {fields["base_offset"]: fields for fields in ordered(shifts.of(list(script.log.values())))}
