"""Two hundred members join one classic group, each on its own connection, until all have an assignment."""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from statistics import mean, median
from typing import Any

from bench.control import fresh_name
from bench.joining import find_coordinator_of, timed_join
from bench.measure import Better, Case, LoadError, Measure
from bench.memory import LITTLE_BYTES
from bench.raw import HEADER_BYTES, Connection, frame
from bench.target import Target
from kpybroker.errors import ErrorCode
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.rpc import heartbeat, join_group, leave_group, sync_group

MEMBERS = 200
GROUPS = 5
PROTOCOL_TYPE, PROTOCOL = "consumer", "range"
HEARTBEAT_S = 0.002
"""Interval of an assigned member's heartbeats, which detect a new generation."""


class Frames:
    """Encoded requests that differ only in the member id. The id is patched in, which is possible because all ids of a
    broker have the same length."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, int], tuple[bytes, ...]] = {}

    def of(self, what: object, member_id: str, key: int, version: int, make: Callable[[str], Any]) -> bytes:
        """The frame for a member id. Calls `make` once for each `what` and length of id."""
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

    @property
    def is_idle(self) -> bool:
        return self.doing is Doing.ASSIGNED

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
        """Send a heartbeat, to check whether the generation is still current."""
        self.doing = Doing.BEATING
        request = heartbeat.Request(group_id=self.group, generation_id=self.generation, member_id=self.id)
        self._send(frame(12, 4, request))

    def read(self) -> None:
        """Read the pending reply, and send the next request."""
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
        """A SyncGroup. With `members` it is the leader's, with an assignment for each."""
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
    """Time from the first JoinGroup until all have an assignment of the same generation, without an initial delay."""

    family = "groups"
    name = "group-join"
    touched_bytes = LITTLE_BYTES
    measures = (
        Measure(
            "group-join.ms", f"{MEMBERS} members join one group: time until it is stable", "ms", Better.LOWER, 1.0, 0.5
        ),
        Measure("group-join.cpu", "… broker CPU", "ms", Better.LOWER),
    )

    def slice(self, target: Target) -> dict[str, float]:
        """The median over several groups, one after the other, because a single join is too short to measure."""
        joined = [self._join(target) for _ in range(GROUPS)]
        return {"group-join.ms": median(ms for ms, _ in joined), "group-join.cpu": mean(cpu for _, cpu in joined)}

    def _join(self, target: Target) -> tuple[float, float]:
        group = fresh_name(self.name)
        find_coordinator_of(target, group)
        frames = Frames()
        members = [Member(Connection(target), group, frames) for _ in range(MEMBERS)]
        return timed_join(members, _stable, _leave, HEARTBEAT_S)


def _stable(members: Sequence[Member]) -> bool:
    """Whether all members have an assignment of the same generation."""
    generation = members[0].generation
    return all(
        member.doing in (Doing.ASSIGNED, Doing.BEATING) and member.generation == generation for member in members
    )


def _leave(members: Sequence[Member]) -> None:
    """Remove all members with one LeaveGroup, on a connection without a pending reply."""
    leaving = [leave_group.MemberIdentity(member_id=member.id) for member in members]
    with Connection(members[0].connection.target) as connection:
        request = leave_group.Request(group_id=members[0].group, members=leaving)
        response = connection.ask(13, 5, request, leave_group.Response)
    refused = [member for member in response.members if member.error_code]
    if response.error_code or refused:
        raise LoadError(f"the group refused a LeaveGroup: {response.error_code} {refused[:1]}")


def cases() -> list[Case]:
    return [Join()]
