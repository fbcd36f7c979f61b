"""The common part of the loads of both group protocols: waiting for the coordinator, and for a stable group."""

import select
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from bench.measure import LoadError
from bench.raw import Connection
from bench.target import Target
from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc import find_coordinator, heartbeat

TIMEOUT_S = 60.0


class Member(Protocol):
    """The interface of a member: every reply leads to its next request."""

    connection: Connection
    next_beat_s: float

    @property
    def is_idle(self) -> bool:
        """Whether no reply is pending, and the member only waits for its next heartbeat."""

    def join(self) -> None: ...

    def beat(self) -> None: ...

    def read(self) -> None:
        """Read the pending reply, and send the next request."""


M = TypeVar("M", bound=Member)


def find_coordinator_of(target: Target, group: str) -> None:
    """Wait until the group's coordinator is loaded: a Heartbeat then fails only with UNKNOWN_MEMBER_ID."""
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


def timed_join(
    members: Sequence[M],
    is_stable: Callable[[Sequence[M]], bool],
    leave: Callable[[Sequence[M]], None],
    pause_s: float,
) -> tuple[float, float]:
    """Milliseconds until the group is stable, and milliseconds of the broker's CPU. Then all members leave.

    pause_s: the interval of checks for due heartbeats.
    """
    target = members[0].connection.target
    try:
        cpu, began = target.cpu(), time.perf_counter()
        _assemble(members, is_stable, pause_s)
        elapsed_s, used = time.perf_counter() - began, target.cpu() - cpu
        leave(members)
    finally:
        for member in members:
            member.connection.socket.close()
    return elapsed_s * 1e3, used.total_s * 1e3


def _assemble(members: Sequence[M], is_stable: Callable[[Sequence[M]], bool], pause_s: float) -> None:
    by_descriptor = {member.connection.socket.fileno(): member for member in members}
    deadline = time.monotonic() + TIMEOUT_S
    with select.epoll() as poll:
        for descriptor, member in by_descriptor.items():
            poll.register(descriptor, select.EPOLLIN)
            member.join()
        while not is_stable(members):
            for descriptor, _ in poll.poll(pause_s):
                by_descriptor[descriptor].read()
            now = time.monotonic()
            if now > deadline:
                raise LoadError(f"{members[0].connection.target.name}: no stable group after {TIMEOUT_S:.0f} s")
            for member in members:
                if member.is_idle and now >= member.next_beat_s:
                    member.beat()
