"""Two hundred members join one group by the classic protocol, each on its own connection, until all are assigned."""

import select
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto
from statistics import mean, median
from typing import Any

from bench.control import fresh_name
from bench.measure import Better, Case, LoadError, Measure
from bench.raw import HEADER_BYTES, Connection, frame
from bench.target import Target
from kpybroker.errors import ErrorCode
from kpybroker.wire.message import parse
from kpybroker.wire.rpc import find_coordinator, heartbeat, join_group, leave_group, sync_group

MEMBERS = 200
GROUPS = 5
PROTOCOL_TYPE, PROTOCOL = "consumer", "range"
HEARTBEAT_S = 0.002
"""A member that is assigned asks after that time whether the others' arrival has begun a new generation."""
TIMEOUT_S = 30.0


class Frames:
    """Encoded requests that differ in the member id only: ids of one broker have one length, and go in as bytes."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, int], tuple[bytes, ...]] = {}

    def of(self, what: object, member_id: str, key: int, version: int, make: Callable[[str], Any]) -> bytes:
        """`make` builds the request for a member id; it is asked once for each `what` and length of id."""
        parts = self._made.get((what, len(member_id)))
        if parts is None:
            mark = "\x7f" * len(member_id)
            parts = tuple(frame(key, version, make(mark)).split(mark.encode())) if member_id else ()
            self._made[what, len(member_id)] = parts
        return member_id.encode().join(parts) if parts else frame(key, version, make(member_id))


class Doing(Enum):
    JOINING = auto()
    SYNCING = auto()
    ASSIGNED = auto()
    BEATING = auto()


class Member:
    """One member's side of the protocol: every reply leads to the next request."""

    def __init__(self, connection: Connection, group: str, frames: Frames) -> None:
        self.connection = connection
        self.group = group
        self.frames = frames
        self.id = ""
        self.generation = -1
        self.doing = Doing.JOINING
        self.next_beat_s = 0.0

    def join(self) -> None:
        self.doing = Doing.JOINING
        self._send(self.frames.of("join", self.id, 11, 9, self._join_request))

    def _join_request(self, member_id: str) -> join_group.Request:
        return join_group.Request(
            group_id=self.group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[join_group.JoinGroupRequestProtocol(name=PROTOCOL, metadata=b"\0" * 20)],
        )

    def beat(self) -> None:
        """Ask whether the generation still stands."""
        self.doing = Doing.BEATING
        request = heartbeat.Request(group_id=self.group, generation_id=self.generation, member_id=self.id)
        self._send(frame(12, 4, request))

    def read(self) -> None:
        """Take the one reply that is due, and go on."""
        reply = self.connection.reply()
        if self.doing is Doing.JOINING:
            self._joined(parse(join_group.Response, 9, reply, HEADER_BYTES))
        elif self.doing is Doing.SYNCING:
            self._synced(parse(sync_group.Response, 5, reply, HEADER_BYTES))
        else:
            self._go_on(parse(heartbeat.Response, 4, reply, HEADER_BYTES).error_code)

    def _joined(self, response: join_group.Response) -> None:
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = response.member_id
            self.join()
            return
        self._demand(response.error_code)
        self.id, self.generation = response.member_id, response.generation_id
        self.doing = Doing.SYNCING
        if response.members:
            self._send(frame(14, 5, self._sync_request(self.id, response.members)))
        else:
            self._send(self.frames.of(self.generation, self.id, 14, 5, self._sync_request))

    def _sync_request(
        self, member_id: str, members: Sequence[join_group.JoinGroupResponseMember] = ()
    ) -> sync_group.Request:
        """With `members` the leader's, which gives each of them something."""
        return sync_group.Request(
            group_id=self.group,
            generation_id=self.generation,
            member_id=member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=[
                sync_group.SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"\0" * 20)
                for member in members
            ],
        )

    def _synced(self, response: sync_group.Response) -> None:
        if response.error_code == ErrorCode.NONE and not response.assignment:
            raise LoadError(f"{self.connection.target.name} gave a member an empty assignment")
        self._go_on(response.error_code)

    def _go_on(self, code: int) -> None:
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
            return
        self._demand(code)
        self.doing = Doing.ASSIGNED

    def _demand(self, code: int) -> None:
        if code != ErrorCode.NONE:
            raise LoadError(f"{self.connection.target.name} refused a member: {ErrorCode(code).name}")

    def _send(self, request: bytes) -> None:
        self.connection.socket.sendall(request)


class Join(Case):
    """From the first JoinGroup until all hold an assignment of one generation. No initial delay on either side."""

    family = "groups"
    name = "group-join"
    measures = (
        Measure("group-join.ms", f"{MEMBERS} members join one group until stable", "ms", Better.LOWER, 1.0, 0.5),
        Measure("group-join.cpu", "… broker CPU", "ms", Better.LOWER),
    )

    def slice(self, target: Target) -> dict[str, float]:
        """The median of some groups, one after the other: one alone takes too little time."""
        joined = [self._join(target) for _ in range(GROUPS)]
        return {"group-join.ms": median(ms for ms, _ in joined), "group-join.cpu": mean(cpu for _, cpu in joined)}

    def _join(self, target: Target) -> tuple[float, float]:
        group = fresh_name(self.name)
        find_coordinator_of(target, group)
        frames = Frames()
        members = [Member(Connection(target), group, frames) for _ in range(MEMBERS)]
        try:
            cpu, began = target.cpu(), time.perf_counter()
            _assemble(members)
            elapsed_s, used = time.perf_counter() - began, target.cpu() - cpu
            _leave(members)
        finally:
            for member in members:
                member.connection.socket.close()
        return elapsed_s * 1e3, used.total_s * 1e3


def find_coordinator_of(target: Target, group: str) -> None:
    """Return once the group's partition is led and loaded: a Heartbeat is then refused for its unknown member only."""
    find = find_coordinator.Request(key_type=0, coordinator_keys=[group])
    beat = heartbeat.Request(group_id=group, generation_id=0, member_id="nobody")
    deadline = time.monotonic() + TIMEOUT_S
    with Connection(target) as connection:
        while time.monotonic() < deadline:
            connection.ask(10, 4, find, find_coordinator.Response)
            if connection.ask(12, 4, beat, heartbeat.Response).error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                return
            time.sleep(0.02)
    raise LoadError(f"{target.name} has no coordinator for a group after {TIMEOUT_S:.0f} s")


def _assemble(members: list[Member]) -> None:
    by_descriptor = {member.connection.socket.fileno(): member for member in members}
    deadline = time.monotonic() + TIMEOUT_S
    with select.epoll() as poll:
        for descriptor, member in by_descriptor.items():
            poll.register(descriptor, select.EPOLLIN)
            member.join()
        while not _stable(members):
            for descriptor, _ in poll.poll(HEARTBEAT_S):
                by_descriptor[descriptor].read()
            now = time.monotonic()
            if now > deadline:
                raise LoadError(f"{members[0].connection.target.name}: no stable group after {TIMEOUT_S:.0f} s")
            for member in members:
                if member.doing is Doing.ASSIGNED and now >= member.next_beat_s:
                    member.beat()


def _stable(members: list[Member]) -> bool:
    """Whether all hold an assignment of the same generation."""
    generation = members[0].generation
    return all(
        member.doing in (Doing.ASSIGNED, Doing.BEATING) and member.generation == generation for member in members
    )


def _leave(members: list[Member]) -> None:
    """All at once, on a connection that waits for no other reply."""
    leaving = [leave_group.MemberIdentity(member_id=member.id) for member in members]
    with Connection(members[0].connection.target) as connection:
        request = leave_group.Request(group_id=members[0].group, members=leaving)
        response = connection.ask(13, 5, request, leave_group.Response)
    refused = [member for member in response.members if member.error_code]
    if response.error_code or refused:
        raise LoadError(f"the group would not be left: {response.error_code} {refused[:1]}")


def cases() -> list[Case]:
    return [Join()]
