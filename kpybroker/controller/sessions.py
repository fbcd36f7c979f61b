"""The sessions of brokers, kept in memory only: a new controller gives every broker a full session (KIP-631)."""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.controller.state import ControllerState

UNKNOWN = -1


class BrokerSessions:
    """Sessions of registered brokers, live or fenced. Times are milliseconds of the steady clock.

    applied: returns the metadata offset that a node has applied, if it is known from a source other than heartbeats.
    """

    def __init__(self, timeout_ms: int, applied: Callable[[int], int] | None = None) -> None:
        self._applied = applied
        self._timeout_ms = timeout_ms
        self._ends_ms: dict[int, int] = {}
        self._let_go: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self.shutdown_offsets: dict[int, int] = {}
        """Brokers in controlled shutdown -> the offset that all brokers must apply before they may stop."""

    def touch(self, node_id: int, now_ms: int, metadata_offset: int = UNKNOWN) -> None:
        """Renew the session of a broker that sent a heartbeat. The broker has applied the metadata up to this
        offset."""
        self._ends_ms[node_id] = now_ms + self._timeout_ms
        self._offsets[node_id] = max(metadata_offset, self._offsets.get(node_id, UNKNOWN))

    def let_go(self, node_id: int) -> None:
        """Let the next incarnation of a broker register at once, since the current one has ended or may have ended. The
        broker is fenced when its session expires."""
        self._let_go[node_id] = self._ends_ms.get(node_id, 0)

    def end(self, node_id: int) -> None:
        """End the session of a broker that has stopped or was unregistered. Its next incarnation may register at
        once."""
        self._ends_ms.pop(node_id, None)
        self._let_go.pop(node_id, None)
        self._offsets.pop(node_id, None)
        self.shutdown_offsets.pop(node_id, None)

    def holds(self, node_id: int, now_ms: int) -> bool:
        """Whether the current incarnation of the broker has a session, because it has sent a heartbeat recently
        enough."""
        end_ms = self._ends_ms.get(node_id, now_ms)
        return end_ms > now_ms and self._let_go.get(node_id) != end_ms

    def begin(self, state: ControllerState, now_ms: int) -> None:
        """Give a full session to every live broker that has none, because it has not sent a heartbeat to this
        controller yet."""
        for node_id, broker in state.brokers.items():
            if not broker.fenced and node_id not in self._ends_ms:
                self._ends_ms[node_id] = now_ms + self._timeout_ms

    def renew_all(self, now_ms: int) -> None:
        """Give all brokers a full session, because this node was suspended and could not receive heartbeats."""
        for node_id in self._ends_ms:
            self._ends_ms[node_id] = now_ms + self._timeout_ms

    def expired(self, state: ControllerState, now_ms: int) -> list[int]:
        """The live brokers whose session has expired."""
        return [node_id for node_id, end_ms in self._live(state) if end_ms <= now_ms]

    def next_end_ms(self, state: ControllerState) -> int | None:
        """The time at which the first session of a live broker expires."""
        return min((end_ms for _, end_ms in self._live(state)), default=None)

    def _live(self, state: ControllerState) -> list[tuple[int, int]]:
        brokers = state.brokers
        return [
            (node_id, end_ms)
            for node_id, end_ms in self._ends_ms.items()
            if node_id in brokers and not brokers[node_id].fenced
        ]

    def applied_by_all(self, state: ControllerState, leaving: int) -> int:
        """The metadata offset that all brokers that may lead have applied, except `leaving`."""
        offsets = (self._offset(each) for each in state.brokers if each != leaving and state.active(each))
        return min(offsets, default=(1 << 63) - 1)

    def _offset(self, node_id: int) -> int:
        told = self._offsets.get(node_id, UNKNOWN)
        return told if self._applied is None else max(told, self._applied(node_id))
