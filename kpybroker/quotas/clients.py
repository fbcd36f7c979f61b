"""The effective client quotas on this node, and the clients' usage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from ipaddress import ip_address

from kpybroker.config import BrokerConfig
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.quotas import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    NO_QUOTAS,
    REQUEST_PERCENTAGE,
    Entity,
    Quotas,
)
from kpybroker.quotas.limits import ANONYMOUS, Applying, applying, of_address
from kpybroker.quotas.meters import Meters
from kpybroker.quotas.rate import Permits, Rate, Windows
from kpybroker.wire.api import Api


class ClientQuotas:
    """Client quotas and their usage, by user and client id. `now_ms` returns the time of the event loop."""

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self.windows = Windows(config.quota_window_num, config.quota_window_size_seconds * 1000)
        of_controller = Windows(config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000)
        self.fetch_max_bytes = config.fetch_max_bytes
        """The most bytes that a Fetch may return now."""
        self._fetch_max_bytes = config.fetch_max_bytes
        self.now_ms = now_ms
        self._quotas = NO_QUOTAS
        self._limits: dict[str, dict[Entity, float]] = {}
        """By quota key."""
        self._rates: Meters[Rate] = Meters(partial(Rate, self.windows))
        self._permits: Meters[Permits] = Meters(partial(Permits, of_controller))
        self._on_change: Callable[[], None] = lambda: None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Set a function that is called when the quotas change."""
        self._on_change = callback

    def limit_fetches(self, most_bytes: int | None) -> None:
        """Limit the bytes of a Fetch response to this, or, with None, only to fetch.max.bytes."""
        allowed = self._fetch_max_bytes
        self.fetch_max_bytes = allowed if most_bytes is None else min(most_bytes, allowed)

    def follow(self, quotas: Quotas) -> None:
        """Adopt quotas. Earlier usage still counts."""
        if quotas is self._quotas:
            return
        self._quotas = quotas
        self._limits = {}
        for entity, values in quotas.items():
            for key, value in values.items():
                self._limits.setdefault(key, {})[_normal(entity)] = value
        self._on_change()

    @property
    def of_requests(self) -> bool:
        """Whether any client has a quota other than for connections."""
        return bool(self._limits.keys() - {CONNECTION_CREATION_RATE})

    def has(self, key: str) -> bool:
        """Whether any quota of this kind is set."""
        return key in self._limits

    def charge(self, key: str, client_id: str | None, value: float, user: str = ANONYMOUS) -> int:
        """Record a client's usage. Returns the client's throttle time in milliseconds."""
        found = self._applying(key, client_id, user)
        if found is None:
            return 0
        now_ms = self.now_ms()
        rate = self._rates.at((key, found.user, found.client_id), now_ms)
        rate.record(value, now_ms)
        wait_ms = rate.wait_ms(found.limit, now_ms)
        return min(wait_ms, self.windows.size_ms) if key == REQUEST_PERCENTAGE else wait_ms

    def take_back(self, key: str, client_id: str | None, value: float, user: str = ANONYMOUS) -> None:
        """Cancel usage that was recorded but did not happen."""
        found = self._applying(key, client_id, user)
        if found is not None:
            now_ms = self.now_ms()
            self._rates.at((key, found.user, found.client_id), now_ms).record(-value, now_ms)

    def most_at_once(self, key: str, client_id: str | None, user: str = ANONYMOUS) -> float | None:
        """The most usage at once for which an idle client is not throttled; None if there is no limit."""
        found = self._applying(key, client_id, user)
        if found is None:
            return None
        return found.limit * (self.windows.samples - 1) * self.windows.size_ms / 1000

    def connected(self, host: str) -> int:
        """Record a new connection. Returns the milliseconds after which it must be closed without being served, or 0 if
        it may be served. A connection that is not served does not count."""
        limits = self._limits.get(CONNECTION_CREATION_RATE)
        limit = None if limits is None else of_address(limits, host)
        if limit is None:
            return 0
        now_ms = self.now_ms()
        rate = self._rates.at((CONNECTION_CREATION_RATE, host, ""), now_ms)
        rate.record(1, now_ms)
        wait_ms = rate.wait_ms(limit, now_ms)
        if wait_ms:
            rate.record(-1, now_ms)
        return min(wait_ms, self.windows.size_ms)

    def mutations(self, api: Api, version: int, client_id: str | None, user: str = ANONYMOUS) -> Mutations:
        """The mutation quota of one request to create, extend or delete topics; its API must have a `strict_from`."""
        assert api.strict_from is not None
        found = self._applying(CONTROLLER_MUTATION_RATE, client_id, user)
        permits = None
        if found is not None:
            permits = self._permits.at((CONTROLLER_MUTATION_RATE, found.user, found.client_id), self.now_ms())
        return Mutations(self.now_ms, permits, found, strict=version >= api.strict_from)

    def _applying(self, key: str, client_id: str | None, user: str) -> Applying | None:
        limits = self._limits.get(key)
        return None if limits is None else applying(limits, user, client_id or "")


class Mutations:
    """The partitions that one request creates or deletes, charged one topic at a time (KIP-599).

    A strict request is refused if permits are already owed. Any other request is accepted, and its client is throttled
    afterwards.
    """

    def __init__(
        self, now_ms: Callable[[], int], permits: Permits | None, found: Applying | None, *, strict: bool
    ) -> None:
        self._now_ms = now_ms
        self._permits = permits
        self._limit = 0.0 if found is None else found.limit
        self._strict = strict
        self._until_ms = 0

    def take(self, partitions: int) -> None:
        """Take the permits of one topic. Raises THROTTLING_QUOTA_EXCEEDED."""
        if self._permits is None:
            return
        now_ms = self._now_ms()
        if self._strict:
            self._owe(self._permits.wait_ms(self._limit, now_ms), now_ms)
            if self._until_ms > now_ms:
                raise KafkaError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded; try again later."
                )
        self._permits.take(partitions, self._limit, now_ms)
        if not self._strict:
            self._owe(self._permits.wait_ms(self._limit, now_ms), now_ms)

    @property
    def wait_ms(self) -> int:
        """The client's throttle time after this request, in milliseconds."""
        return max(self._until_ms - self._now_ms(), 0)

    def _owe(self, wait_ms: int, now_ms: int) -> None:
        self._until_ms = now_ms + wait_ms


def _normal(entity: Entity) -> Entity:
    """The entity with its address in the form that sockets use. A host name, which only Kafka accepts, never
    matches."""
    if len(entity) != 1 or entity[0][0] != IP or entity[0][1] is None:
        return entity
    try:
        return ((IP, str(ip_address(entity[0][1]))),)
    except ValueError:
        return entity
