"""Share sessions (KIP-932): the partitions that each member fetches. They exist only in the memory of one broker.

A session belongs to the connection that opened it, and ends with that connection. ShareFetch and ShareAcknowledge
requests both advance its epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.topics import TopicIdPartition

OPENING, CLOSING = 0, -1
LOOKED_AT_ONCE = 500
"""The maximum number of partitions that one fetch checks. This takes about ten milliseconds."""
LAST_EPOCH = (1 << 31) - 1


class SessionKey(NamedTuple):
    """A member of a share group."""

    group_id: str
    member_id: str


class ShareSession:
    """The partitions that one member fetches, in the order in which it added them."""

    __slots__ = ("connection", "epoch", "key", "places", "unanswered")

    def __init__(self, key: SessionKey, connection: int) -> None:
        self.key = key
        self.connection = connection
        self.epoch = 1
        """The epoch of the next request."""
        self.places: dict[TopicIdPartition, None] = {}
        self.unanswered: set[TopicIdPartition] = set()
        """Partitions that no response has contained yet."""

    def add(self, places: Sequence[TopicIdPartition]) -> None:
        """Add partitions to the session."""
        new = [place for place in places if place not in self.places]
        self.places.update(dict.fromkeys(new))
        self.unanswered.update(new)

    def answered(self, places: Iterable[TopicIdPartition]) -> None:
        """Record that a response includes these partitions."""
        self.unanswered.difference_update(places)

    def forget(self, places: Iterable[TopicIdPartition]) -> None:
        """Remove partitions from the session."""
        for place in places:
            self.places.pop(place, None)
            self.unanswered.discard(place)

    def advance(self) -> None:
        """Count an accepted request."""
        self.epoch = 1 if self.epoch == LAST_EPOCH else self.epoch + 1

    def in_turn(self) -> list[TopicIdPartition]:
        """The partitions that this fetch checks, in order. The first one rotates from fetch to fetch.

        A check of all partitions is one step of the event loop. If there are more than LOOKED_AT_ONCE, each fetch
        checks only that many, and the next fetch continues after them.
        """
        places = list(self.places)
        if not places:
            return places
        step = LOOKED_AT_ONCE if len(places) > LOOKED_AT_ONCE else 1
        at = self.epoch * step % len(places)
        return (places[at:] + places[:at])[:LOOKED_AT_ONCE]


class ShareSessions:
    """The sessions of a broker."""

    def __init__(self) -> None:
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[int, ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: SessionKey, connection: int, most: int) -> ShareSession:
        """Open a session, in place of the member's earlier one. If the connection already has a session, that one no
        longer ends with the connection. Raises SHARE_SESSION_LIMIT_REACHED."""
        if key not in self._sessions and len(self._sessions) >= most:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, f"this broker has {most} share sessions, which is the limit"
            )
        self.close(key)
        session = self._sessions[key] = self._by_connection[connection] = ShareSession(key, connection)
        return session

    def find(self, key: SessionKey) -> ShareSession | None:
        """The member's session, if it has one."""
        return self._sessions.get(key)

    def resume(self, key: SessionKey, epoch: int) -> ShareSession:
        """The session of a request; advances its epoch. Raises SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH."""
        session = self.find(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch == CLOSING:
            return session
        if epoch != session.epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.advance()
        return session

    def close(self, key: SessionKey) -> ShareSession | None:
        """End a session; None if there is none."""
        session = self._sessions.pop(key, None)
        if session is not None and self._by_connection.get(session.connection) is session:
            del self._by_connection[session.connection]
        return session

    def closed(self, connection: int) -> ShareSession | None:
        """End the session of a closed connection, and return it; None if it had none."""
        session = self._by_connection.get(connection)
        return None if session is None else self.close(session.key)

    def has_group(self, group_id: str) -> bool:
        """Whether a member of the group has a session."""
        return any(key.group_id == group_id for key in self._sessions)

    def clear(self) -> list[ShareSession]:
        """End all sessions, and return them."""
        ended = list(self._sessions.values())
        self._sessions.clear()
        self._by_connection.clear()
        return ended
