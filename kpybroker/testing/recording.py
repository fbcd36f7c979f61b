"""Recordings of the requests that clients send to the brokers of a test, and the last requests of these brokers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from kpybroker.client.recorded import (
    Filter,
    Filters,
    RecordedRequest,
    load,
    save,
    table_of,
)
from kpybroker.client.replaying import REQUEST_TIMEOUT_S, Replay, replay
from kpybroker.similar_names import meant
from kpybroker.testing.arguments import text, whole_number
from kpybroker.testing.node import ClusterNode, Turn
from kpybroker.testing.waiting import becomes_true

EXPECT_TIMEOUT_S = 10.0
SHOWN = 20
IDS_AT_ONCE = 1000
LAST_TAPE = 0


class TopicNames:
    """The names of topics by their ids, as the brokers know them."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def learn(self, node: ClusterNode, requests: Sequence[RecordedRequest]) -> None:
        """Look up the ids in these requests that are not known yet."""
        unknown = {each for request in requests for each in request.topic_ids} - self.names.keys()
        ids = sorted(unknown)
        for at in range(0, len(ids), IDS_AT_ONCE):
            self.names.update(node.command({"do": "topics", "ids": ids[at : at + IDS_AT_ONCE]})["topics"])


def take(node: ClusterNode, tape: int, names: TopicNames) -> tuple[list[RecordedRequest], int]:
    """The recorded requests of a node, and the number of those that did not fit."""
    found: list[RecordedRequest] = []
    after = 0
    while True:
        answer = node.command({"do": "take", "tape": tape, "after": after})
        lines: list[dict[str, Any]] = answer["requests"]
        found += [RecordedRequest.of_line({**line, "node": node.node_id}, names.names) for line in lines]
        if not answer["more"]:
            break
        after = lines[-1]["number"]
    names.learn(node, found)
    return found, answer["lost"]


def last_requests(nodes: Sequence[ClusterNode]) -> list[RecordedRequest]:
    """The last requests of all nodes that take commands, in the order in which they came."""
    found: list[RecordedRequest] = []
    names = TopicNames()
    for node in nodes:
        if node.takes_commands:
            found += take(node, LAST_TAPE, names)[0]
    return sorted(found, key=_order)


def _order(request: RecordedRequest) -> tuple[int, int, int]:
    return request.at_us, request.node, request.number


class Recording:
    """The requests that clients have sent since its beginning, with the responses. It ends with the `with` block, or
    with `end`, and can still be read after that.

    A recording continues when a broker is stopped or killed and started again. Requests of brokers and those of the
    test kit itself are not recorded.
    """

    def __init__(
        self,
        nodes: Sequence[ClusterNode] = (),
        requests: Sequence[RecordedRequest] = (),
        names: Mapping[str, str] | None = None,
        turn: Turn | None = None,
    ) -> None:
        """Of the requests to these nodes, once `begin_at` is called; or one that has ended, with these requests."""
        self._nodes = nodes
        self._turn = Turn() if turn is None else turn
        self._names = TopicNames()
        self._names.names.update(names or {})
        self._found: dict[tuple[object, int, int], RecordedRequest] = {}
        """By incarnation, node and number."""
        for at, request in enumerate(requests):
            self._found[0, 0, at] = request
        self._tapes: dict[ClusterNode, tuple[int, object]] = {}
        """The number of the recording at each node, and the incarnation of the node."""
        self._left: dict[ClusterNode, tuple[int, object]] = {}
        """The same, for paused nodes that still record after the end."""
        self._lost: dict[tuple[int, object], int] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """The recording in a file. Raises OSError; ValueError with the line and the reason if it is damaged."""
        requests = load(Path(path))
        return cls((), requests, requests[0].topic_names if requests else None)

    def begin_at(self, node: ClusterNode, *, with_last: bool = False) -> None:
        """Record at this node from now on, if it is one of this recording's nodes. `with_last`: also what the process
        has recorded since its start."""
        if node not in self._nodes:
            return
        tape = node.command({"do": "record", "with_last": with_last})["tape"]
        self._tapes[node] = tape, node.incarnation

    def collect(self, node: ClusterNode | None = None) -> None:
        """Fetch what a node has recorded, or all; nodes that do not run, or are paused, are left out."""
        with self._turn:
            for each in list(self._tapes) if node is None else [node]:
                tape, run = self._tapes.get(each, (0, None))
                if tape and each.takes_commands and each.incarnation == run:
                    requests, lost = take(each, tape, self._names)
                    self._found.update({(run, request.node, request.number): request for request in requests})
                    self._lost[each.node_id, run] = lost

    @property
    def lasts(self) -> bool:
        """Whether requests are still recorded."""
        return bool(self._tapes)

    def end(self) -> None:
        """Stop recording. A paused broker stops when it continues, but what it has recorded since is not fetched."""
        with self._turn:
            self.collect()
            self._left, self._tapes = self._left | self._tapes, {}
            for node in list(self._left):
                self.end_at(node)

    @property
    def is_left(self) -> bool:
        """Whether a paused node still records."""
        return bool(self._left)

    def end_at(self, node: ClusterNode) -> None:
        """Stop at a node that still records after the end. Does nothing while the node is paused."""
        if node in self._left and (node.takes_commands or not node.is_running):
            tape, run = self._left.pop(node)
            if node.takes_commands and node.incarnation == run:
                node.command({"do": "end", "tape": tape})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def __repr__(self) -> str:
        return f"<recording of {len(self._found)} requests{' so far' if self.lasts else ''}>"

    def __iter__(self) -> Iterator[RecordedRequest]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> list[RecordedRequest]:
        with self._turn:
            self.collect()
            return sorted(self._found.values(), key=_order)

    @property
    def lost(self) -> int:
        """The number of requests that are missing because a broker had recorded 100,000 requests or 64 MB."""
        with self._turn:
            self.collect()
            return sum(self._lost.values())

    def requests(self, api: str | None = None, **chosen: Unpack[Filters]) -> list[RecordedRequest]:
        """The requests in the order in which they came; all, or those with this name (such as "Produce") that match.

        `topic`, `group`: a topic or group that the request names; `client_id`; `node`; `error`: the name of an error
        code in the response; `where`: a function of the request. Raises ValueError for a filter that can never match.
        """
        wanted = self._filter(api, chosen)
        return [request for request in self._all() if wanted.matches(request)]

    def _filter(self, api: str | None, chosen: Mapping[str, Any]) -> Filter:
        """Raises TypeError, ValueError."""
        for name in chosen:
            if name not in Filters.__annotations__:
                raise TypeError(f"requests cannot be chosen by {name!r}{meant(name, Filters.__annotations__)}")
        wanted = Filter(api, **chosen).check()
        nodes = [node.node_id for node in self._nodes]
        if nodes and wanted.node is not None and wanted.node not in nodes:
            raise ValueError(f"node={wanted.node!r}: this recording is of broker {', '.join(map(str, nodes))}")
        return wanted

    def expect(
        self,
        api: str,
        count: int = 1,
        timeout_s: float = EXPECT_TIMEOUT_S,
        *,
        answered: bool = True,
        **chosen: Unpack[Filters],
    ) -> list[RecordedRequest]:
        """Wait until at least `count` such requests have been answered, and return them. Arguments as for `requests`.

        `answered=False`: wait only until they have come.

        Raises AssertionError after `timeout_s`, or at once if the recording has ended, with what was recorded.
        """
        whole_number("count", count)
        found: list[RecordedRequest] = []
        lasts = True

        def is_settled(_left_s: float) -> bool:
            nonlocal lasts
            lasts = self.lasts
            found[:] = [each for each in self.requests(api, **chosen) if each.duration_us is not None or not answered]
            return len(found) >= count or not lasts

        becomes_true(is_settled, timeout_s)
        if len(found) >= count:
            return found
        within = f" within {timeout_s:g} s" if lasts else ""
        wanted = Filter(api, **chosen)
        raise AssertionError(
            f"expected {count} {wanted}{within}, found {len(found)}; {self._last_lines(api)}{self._gap()}"
        )

    def none(self, api: str, **chosen: Unpack[Filters]) -> None:
        """Check that no such request has been recorded. Arguments as for `requests`.

        Raises AssertionError with these requests; RuntimeError if requests are missing from the recording.
        """
        found = self.requests(api, **chosen)
        if found:
            raise AssertionError(f"expected no {Filter(api, **chosen)}, found {len(found)}:\n{table_of(found[:SHOWN])}")
        if self.lost:
            raise RuntimeError(f"whether there was {Filter(api, **chosen)} is unknown{self._gap()}")

    def table(self, api: str | None = None, **chosen: Unpack[Filters]) -> str:
        """A line of text for each request. Arguments as for `requests`."""
        return table_of(self.requests(api, **chosen)) + self._gap()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `load`, `kpybroker requests show` and `kpybroker requests replay` read. It contains
        everything that clients sent, also keys and values of records. Raises OSError."""
        save(Path(path), self._all(), self._names.names)

    def replay(
        self,
        bootstrap: str,
        properties: str | os.PathLike[str] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Replay:
        """Send the requests again, to another cluster, and compare the responses; see `kpybroker requests replay`.

        `properties`: a file with the settings of a client, if the cluster has logins or TLS. Raises CommandFailed if it
        cannot be reached.
        """
        text("bootstrap", bootstrap)
        return replay(self._all(), bootstrap, None if properties is None else Path(properties), timeout_s)

    def _gap(self) -> str:
        lost = sum(self._lost.values())
        return f"\n{lost} requests are missing: a broker records at most 100,000 requests and 64 MB" if lost else ""

    def _last_lines(self, api: str) -> str:
        """What was recorded instead of an expected request."""
        same = self.requests(api)
        shown = same or self._all()
        if not shown:
            return "no request was recorded"
        return f"the last requests{f' of {api}' if same else ''}:\n{table_of(shown[-SHOWN:])}"


class Recordings:
    """The recordings of a cluster that have not ended: they follow the starts and stops of its nodes."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._open: list[Recording] = []

    def begin(self, nodes: Sequence[ClusterNode]) -> Recording:
        """Begin a recording. Raises ValueError if a node has too many, RuntimeError if none runs."""
        with self._turn, contextlib.ExitStack() as undo:
            if not any(node.is_running for node in nodes):
                raise RuntimeError("no broker runs, so nothing can be recorded; call start() first")
            recording = Recording(nodes, turn=self._turn)
            undo.callback(recording.end)
            for node in nodes:
                if node.takes_commands or node.is_paused:  # others are recorded when they have been started
                    recording.begin_at(node)
            undo.pop_all()
            self._open = [*(each for each in self._open if each.lasts or each.is_left), recording]
        return recording

    def before_end(self, nodes: Sequence[ClusterNode]) -> None:
        """Fetch what these nodes have recorded, before they end."""
        for recording in self._lasting():
            for node in nodes:
                recording.collect(node)

    def after_start(self, node: ClusterNode) -> None:
        """Continue at a node that has been started."""
        self.after_resume(node)
        for recording in self._lasting():
            recording.begin_at(node, with_last=True)

    def after_resume(self, node: ClusterNode) -> None:
        """End the recordings whose block ended while the node was paused."""
        for recording in self._open:
            recording.end_at(node)

    def _lasting(self) -> list[Recording]:
        return [each for each in self._open if each.lasts]
