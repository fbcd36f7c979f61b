"""The calls of the test kit as HTTP routes, for tests in other languages."""

from __future__ import annotations

import base64
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, TypeVar, Unpack

from kpybroker.client.recorded import RecordedRequest, table_of
from kpybroker.testing.cluster import Cluster
from kpybroker.testing.fault import DiskFaultArguments, Fault, FaultArguments
from kpybroker.testing.http_routes import HttpError, Routes
from kpybroker.testing.operations import ReceivedRecord
from kpybroker.testing.recording import Recording
from kpybroker.testing.snapshot import Snapshot
from kpybroker.testing.waiting import becomes_true

FAULTS_MAX = 100
WAIT_S = 10.0
WAIT_S_MAX = 300.0
ROUTES = Routes("kpybroker dev --control")
T = TypeVar("T")


class Held(NamedTuple):
    """A fault that lasts until it is healed."""

    what: str
    begun: Any
    """What the `with` block of the fault yields: a Fault, the id of the lost controller, or None."""
    stack: ExitStack


class Control:
    """A cluster, and the faults, recordings and snapshots that clients have made. One call changes it at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.lock = threading.RLock()
        self.faults: dict[int, Held] = {}
        self.recordings: dict[int, Recording] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self._numbers = itertools.count(1)

    def inject(self, what: str, fault: AbstractContextManager[Any]) -> dict[str, Any]:
        """Begin a fault, and keep it until `heal`. Raises HttpError if there are too many."""
        if len(self.faults) >= FAULTS_MAX:
            raise HttpError(409, f"there are {FAULTS_MAX} faults; heal some first (DELETE /faults/ID)")
        with ExitStack() as stack:
            begun = stack.enter_context(fault)
            number = next(self._numbers)
            self.faults[number] = Held(what, begun, stack.pop_all())
        return self.told_of(number)

    def told_of(self, number: int) -> dict[str, Any]:
        """A fault as its client sees it."""
        held = found(self.faults, number, "fault")
        told: dict[str, Any] = {"id": number, "what": held.what}
        if isinstance(held.begun, Fault):
            told["hits"] = held.begun.hits
        elif held.begun is not None:
            told["node"] = held.begun
        return told

    def heal(self, number: int) -> dict[str, Any]:
        """End a fault. The faults that began later last on."""
        held = found(self.faults, number, "fault")
        del self.faults[number]
        held.stack.close()
        return {"hits": held.begun.hits} if isinstance(held.begun, Fault) else {}

    def keep(self, things: dict[int, T], thing: T) -> int:
        """Give a thing a number."""
        number = next(self._numbers)
        things[number] = thing
        return number


def found(things: Mapping[int, T], number: int, kind: str) -> T:
    """The thing with this number. Raises HttpError."""
    if number not in things:
        raise HttpError(404, f"there is no {kind} {number}; there are {', '.join(map(str, things)) or 'none'}")
    return things[number]


def _until(is_met: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it becomes true in time. Raises HttpError for a time that is too long."""
    if not 0 <= timeout_s <= WAIT_S_MAX:
        raise HttpError(400, f"timeout_s={timeout_s}: must be from 0 to {WAIT_S_MAX:g}")
    return becomes_true(lambda _: is_met(), timeout_s)


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    """A key or a value; bytes that are not UTF-8 are in a field named `..._base64`."""
    with contextlib.suppress(UnicodeDecodeError):
        return {name: None if data is None else data.decode()}
    return {f"{name}_base64": base64.b64encode(data or b"").decode()}


def _record(record: ReceivedRecord) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **_text("key", record.key),
        **_text("value", record.value),
        "headers": [{"key": name, **_text("value", content)} for name, content in record.headers],
    }


def _plain(value: Any) -> Any:
    """A decoded request without bytes, which JSON does not have."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _request(request: RecordedRequest) -> dict[str, Any]:
    return {
        "at": request.at.isoformat(),
        "node": request.node,
        "client_id": request.client_id,
        "api": request.api,
        "version": request.version,
        "topics": request.topics,
        "groups": request.groups,
        "fields": _plain(request.fields),
        "response_fields": _plain(request.response_fields),
        "errors": request.errors,
        "outcome": request.outcome,
        "duration_s": request.duration_s,
    }


@ROUTES.add("GET", "/brokers")
def brokers(control: Control) -> dict[str, Any]:
    """The addresses of the brokers, and which of them run."""
    cluster = control.cluster
    running = cluster.running_nodes
    rows = [{"id": node, "bootstrap": cluster.bootstrap_of(node), "running": node in running} for node in cluster.nodes]
    return {
        "bootstrap": cluster.bootstrap,
        "http": cluster.http,
        "brokers": rows,
    }


@ROUTES.add("GET", "/controller")
def controller(control: Control) -> dict[str, Any]:
    """The id of the active controller."""
    return {"node": control.cluster.controller}


@ROUTES.add("POST", "/brokers/{node}/stop")
def stop(control: Control, node: int) -> None:
    """Stop a broker as SIGTERM does: it hands over what it leads first."""
    control.cluster.stop(node)


@ROUTES.add("POST", "/brokers/{node}/kill")
def kill(control: Control, node: int) -> None:
    """End a broker as kill -9 does."""
    control.cluster.kill(node)


@ROUTES.add("POST", "/brokers/{node}/start")
def start(control: Control, node: int) -> None:
    """Start a broker on the same port with the same data, and wait until it serves."""
    control.cluster.start(node)


@ROUTES.add("POST", "/brokers/{node}/restart")
def restart(control: Control, node: int) -> None:
    """Stop a broker and start it again."""
    control.cluster.restart(node)


@ROUTES.add("POST", "/brokers/{node}/pause")
def pause(control: Control, node: int) -> None:
    """Halt a broker: connections stay open, and requests get no response."""
    control.cluster.pause(node)


@ROUTES.add("POST", "/brokers/{node}/resume")
def resume(control: Control, node: int) -> None:
    """Let a paused broker continue."""
    control.cluster.resume(node)


@ROUTES.add("POST", "/brokers/{node}/lose-data")
def lose_data(control: Control, node: int) -> None:
    """Remove all data of a stopped broker, as if its disk had been replaced."""
    control.cluster.lose_data(node)


@ROUTES.add("GET", "/log")
def log(control: Control) -> dict[str, Any]:
    """What the brokers have written to standard error."""
    return {"log": control.cluster.log}


@ROUTES.add("POST", "/topics")
def create_topic(
    control: Control, prefix: str = "topic", partitions: int | None = None, config: dict[str, object] | None = None
) -> dict[str, Any]:
    """Create a topic with a unique name, which is in the response."""
    return {"topic": control.cluster.topic(prefix, partitions=partitions, config=config, create=True)}


@ROUTES.add("POST", "/topics/{topic}/records")
def send(
    control: Control,
    topic: str,
    values: list[str],
    key: str | None = None,
    headers: dict[str, str] | None = None,
    partition: int | None = None,
    timestamp_ms: int | None = None,
) -> None:
    """Send a record for each value, and wait until all are acknowledged."""
    control.cluster.send(
        topic, *values, key=key, headers=dict(headers or {}), partition=partition, timestamp_ms=timestamp_ms
    )


@ROUTES.add("GET", "/topics/{topic}/records")
def records(
    control: Control, topic: str, count: int = 0, timeout_s: float = WAIT_S, committed_only: bool = False
) -> dict[str, Any]:
    """All records in the topic, once there are at least `count`; an error if there are not in time."""
    if not count:
        found_now = control.cluster.records(topic, committed_only=committed_only)
    else:
        _until(lambda: True, timeout_s)  # which refuses a time that is too long
        found_now = control.cluster.expect(topic, count, timeout_s, committed_only=committed_only)
    return {"records": [_record(each) for each in found_now]}


@ROUTES.add("POST", "/topics/{topic}/delete-records")
def delete_records(control: Control, topic: str, before: dict[int, int]) -> None:
    """Delete the records of each partition before an offset: {"before": {"0": 100}}."""
    control.cluster.delete_records(topic, before)


@ROUTES.add("POST", "/topics/{topic}/compact")
def compact(control: Control, topic: str) -> None:
    """Compact a topic now."""
    control.cluster.compact(topic)


@ROUTES.add("POST", "/topics/{topic}/partitions/{partition}/leader")
def move_leader(control: Control, topic: str, partition: int, to: int) -> None:
    """Make a broker the leader of a partition."""
    control.cluster.move_leader(topic, partition, to)


@ROUTES.add("GET", "/topics/{topic}/partitions/{partition}/in-sync")
def in_sync(control: Control, topic: str, partition: int) -> dict[str, Any]:
    """The brokers whose replicas of a partition are in sync."""
    return {"in_sync": control.cluster.in_sync(topic, partition)}


@ROUTES.add("POST", "/topics/{topic}/partitions/{partition}/tear-tail")
def tear_tail(control: Control, topic: str, partition: int, size_bytes: int, node: int = 1) -> None:
    """Cut bytes off the last segment of a stopped broker's replica."""
    control.cluster.tear_tail(topic, partition, size_bytes, node=node)


@ROUTES.add("POST", "/topics/{topic}/partitions/{partition}/flip-bit")
def flip_bit(control: Control, topic: str, partition: int, node: int = 1) -> None:
    """Damage a record in the last segment of a stopped broker's replica."""
    control.cluster.flip_bit(topic, partition, node=node)


@ROUTES.add("POST", "/apply-retention")
def apply_retention(control: Control) -> None:
    """Delete records that are too old or exceed the size limit, now."""
    control.cluster.apply_retention()


@ROUTES.add("GET", "/groups/{group}/topics/{topic}")
def committed(
    control: Control, group: str, topic: str, wait: bool = False, timeout_s: float = WAIT_S
) -> dict[str, Any]:
    """The offsets that a group has committed, and its lag. `wait`: wait until the group has read everything."""
    if wait:
        _until(lambda: True, timeout_s)
        control.cluster.wait_until_read(group, topic, timeout_s)
    return {"committed": control.cluster.committed(group, topic), "lag": control.cluster.lag(group, topic)}


@ROUTES.add("POST", "/groups/{group}/remove-members")
def remove_members(control: Control, group: str) -> dict[str, Any]:
    """Let all members leave, as if their sessions had ended: a rebalance."""
    return {"members": control.cluster.remove_members(group)}


@ROUTES.add("POST", "/groups/{group}/coordinator")
def move_coordinator(control: Control, group: str, to: int) -> None:
    """Make a broker the coordinator of a group."""
    control.cluster.move_coordinator(group, to)


@ROUTES.add("POST", "/producers/{transactional_id}/fence")
def fence_producer(control: Control, transactional_id: str) -> None:
    """Abort the transaction of a producer, and fence it."""
    control.cluster.fence_producer(transactional_id)


@ROUTES.add("POST", "/reset")
def reset(control: Control) -> None:
    """Heal all faults, and delete all topics and groups."""
    heal_all(control)
    control.cluster.reset()


@ROUTES.add("POST", "/clock/advance")
def advance(control: Control, by: str) -> dict[str, Any]:
    """Move the clock of the brokers forward, for example by "8d": what is due by then expires."""
    control.cluster.clock.advance(by)
    return {"ahead_ms": control.cluster.clock.ahead_ms}


@ROUTES.add("POST", "/faults")
def add_fault(control: Control, api: str, node: int | None = None, **what: Unpack[FaultArguments]) -> dict[str, Any]:
    """Disturb requests of clients, such as {"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "times": 1}, until the
    fault is healed. The response has its id."""
    return control.inject(f"requests {api}", control.cluster.fault(api, node=node, **what))


@ROUTES.add("POST", "/disk-faults")
def add_disk_fault(control: Control, node: int | None = None, **what: Unpack[DiskFaultArguments]) -> dict[str, Any]:
    """Disturb a disk: exactly one of full, broken, slow_s, stuck."""
    return control.inject("disk", control.cluster.disk_fault(node=node, **what))


@ROUTES.add("POST", "/cuts")
def cut(control: Control, one: int, other: int) -> dict[str, Any]:
    """Cut two brokers off from each other."""
    return control.inject(f"between brokers {one} and {other}", control.cluster.cut(one, other))


@ROUTES.add("POST", "/brokers/{node}/isolate")
def isolate(control: Control, node: int) -> dict[str, Any]:
    """Cut a broker off from all others."""
    return control.inject(f"around broker {node}", control.cluster.isolate(node))


@ROUTES.add("POST", "/lose-controller")
def lose_controller(control: Control) -> dict[str, Any]:
    """Kill the active controller, and wait for another one. It starts again when this fault is healed."""
    return control.inject("the controller is lost", control.cluster.lose_controller())


@ROUTES.add("POST", "/weather/{name}")
def weather(control: Control, name: str) -> dict[str, Any]:
    """Common disturbances: flaky_network, slow_disk, rolling_restart."""
    return control.inject(f"weather {name}", control.cluster.weather(name))


@ROUTES.add("GET", "/faults")
def faults(control: Control) -> dict[str, Any]:
    """All faults that last."""
    return {"faults": [control.told_of(number) for number in control.faults]}


@ROUTES.add("GET", "/faults/{fault}")
def fault_hits(control: Control, fault: int, count: int = 0, timeout_s: float = WAIT_S) -> dict[str, Any]:
    """A fault, and how many requests it has affected, once there are at least `count`; an error if there are not in
    time."""

    def is_met() -> bool:
        with control.lock:
            held = found(control.faults, fault, "fault")
            return count <= 0 or (isinstance(held.begun, Fault) and held.begun.hits >= count)

    is_in_time = _until(is_met, timeout_s)
    with control.lock:
        told = control.told_of(fault)
    if not is_in_time:
        raise AssertionError(f"the fault was hit {told.get('hits', 0)} times within {timeout_s:g} s, not {count}")
    return told


@ROUTES.add("DELETE", "/faults/{fault}")
def heal(control: Control, fault: int) -> dict[str, Any]:
    """End a fault."""
    return control.heal(fault)


@ROUTES.add("DELETE", "/faults")
def heal_all(control: Control) -> None:
    """End all faults, the last one first."""
    for number in reversed(list(control.faults)):
        control.heal(number)


@ROUTES.add("GET", "/requests")
def requests(control: Control) -> dict[str, Any]:
    """The last requests of clients: at most 1,000 and 1 MB for each broker."""
    return _requests_told(control.cluster.requests)


@ROUTES.add("POST", "/recordings")
def record(control: Control, node: int | None = None) -> dict[str, Any]:
    """Record the requests of clients, until the recording is ended."""
    return {"id": control.keep(control.recordings, control.cluster.record(node))}


@ROUTES.add("GET", "/recordings/{recording}/requests")
def recorded(
    control: Control,
    recording: int,
    api: str | None = None,
    topic: str | None = None,
    group: str | None = None,
    client_id: str | None = None,
    error: str | None = None,
) -> dict[str, Any]:
    """The recorded requests, as a list and as a table of text."""
    chosen = {"topic": topic, "group": group, "client_id": client_id, "error": error}
    filters: Any = {name: value for name, value in chosen.items() if value is not None}
    return _requests_told(found(control.recordings, recording, "recording").requests(api, **filters))


def _requests_told(told: list[RecordedRequest]) -> dict[str, Any]:
    return {"requests": [_request(each) for each in told], "table": table_of(told)}


@ROUTES.add("DELETE", "/recordings/{recording}")
def end_recording(control: Control, recording: int) -> None:
    """End a recording and forget it."""
    found(control.recordings, recording, "recording").end()
    del control.recordings[recording]


@ROUTES.add("POST", "/snapshots")
def snapshot(control: Control) -> dict[str, Any]:
    """Copy the data of all brokers, which are stopped for that and started again."""
    return {"id": control.keep(control.snapshots, control.cluster.snapshot())}


@ROUTES.add("POST", "/snapshots/{snapshot_id}/restore")
def restore(control: Control, snapshot_id: int) -> None:
    """Return to the data of a snapshot. Close clients before this."""
    control.cluster.restore(found(control.snapshots, snapshot_id, "snapshot"))


UNLOCKED = frozenset({records, committed, fault_hits, brokers, controller, log, send, in_sync})
"""Calls that may wait, or that only read: the others go on in the meantime."""


@contextlib.contextmanager
def turn(control: Control, call: Callable[..., Any]) -> Iterator[None]:
    """Let this call be the only one that changes the cluster within a `with` block."""
    if call in UNLOCKED:
        yield
    else:
        with control.lock:
            yield
