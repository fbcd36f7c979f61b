"""All parts of the metadata. To add a record type, write a `Part` (`part.py`) in a file of its own, and add it to
`PARTS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kpybroker.errors import Damage
from kpybroker.metadata.acls import ACL_IDS, ACLS
from kpybroker.metadata.brokers import BROKERS, CONTROLLERS, BrokerImage
from kpybroker.metadata.cluster import CONFIGS, FEATURES, NEXT_PRODUCER_ID, Resource
from kpybroker.metadata.part import Item, Key, Metadata, Part, Value
from kpybroker.metadata.quotas import QUOTAS, Quotas
from kpybroker.metadata.retirements import RETIREMENTS, Retirement
from kpybroker.metadata.scram import SCRAM_CREDENTIALS, ScramCredentials
from kpybroker.metadata.tokens import DELEGATION_TOKENS
from kpybroker.metadata.topics import TOPIC_NAMES, TOPICS
from kpybroker.metadata.views import VIEWS, TopicView
from kpybroker.security.acls import Acl
from kpybroker.security.delegation_tokens import DelegationToken
from kpybroker.wire.stored import metadata as stored

PARTS: tuple[Part[Any], ...] = (
    FEATURES,
    CONTROLLERS,
    BROKERS,
    TOPIC_NAMES,
    TOPICS,
    VIEWS,
    RETIREMENTS,
    CONFIGS,
    QUOTAS,
    SCRAM_CREDENTIALS,
    NEXT_PRODUCER_ID,
    ACLS,
    ACL_IDS,
    DELEGATION_TOKENS,
)
"""All parts, in the order of a snapshot."""


def _nothing(metadata: Metadata, record: Any) -> None:
    """Apply a NoOpRecord or a record of a ZooKeeper migration, which have no effect."""


CHANGES: Mapping[type[Any], Callable[[Metadata, Any], None]] = {
    stored.NoOpRecord: _nothing,
    stored.ZkMigrationStateRecord: _nothing,
    **{kind: change for part in PARTS for kind, change in part.changes.items()},
}
assert len(CHANGES) == 2 + sum(len(part.changes) for part in PARTS), "two parts have the same type of record"


class MetadataContent:
    """The value of every part, as an attribute with the part's name. Only the attributes that other modules read are
    declared here, for mypy; `Part.of` gives any of them with its type."""

    __slots__ = ("open_transaction", *(part.name for part in PARTS))

    acl_ids: Mapping[Acl, bytes]
    """The id of each ACL; among equal ACLs, that of the last one."""
    acls: Mapping[bytes, Acl]
    """ACLs by id."""
    brokers: Mapping[int, BrokerImage]
    configs: Mapping[Resource, Mapping[str, str]]
    """The settings of each resource itself, without defaults."""
    controllers: Mapping[int, stored.RegisterControllerRecord]
    delegation_tokens: Mapping[str, DelegationToken]
    """Delegation tokens by id."""
    features: Mapping[str, int]
    names: Mapping[bytes, str]
    """Topic id -> name."""
    next_producer_id: int
    quotas: Quotas
    """The configured quotas, by entity."""
    scram_credentials: ScramCredentials
    retirements: Mapping[str, Retirement]
    views: Mapping[str, TopicView]
    open_transaction: Sequence[Any] | None
    """The records of an open metadata transaction (KIP-868)."""

    def __init__(self, before: MetadataContent | None = None) -> None:
        for part in PARTS:
            setattr(self, part.name, part.empty if before is None else part.of(before))
        self.open_transaction = None if before is None else before.open_transaction

    def freeze_transaction(self) -> None:
        """Replace the list of an open transaction's records with an immutable copy."""
        if self.open_transaction is not None:
            self.open_transaction = tuple(self.open_transaction)

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The settings of a resource itself, without defaults, by name."""
        return self.configs.get((resource_type, name), {})

    def __eq__(self, other: object) -> bool:
        """Whether the values of all parts are equal, regardless of the records that led to them."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.open_transaction == other.open_transaction and all(
            part.of(self) == part.of(other) for part in PARTS
        )

    __hash__ = None  # type: ignore[assignment]  # compared by content, never a key


class Replaying(MetadataContent, Metadata):
    """Metadata that is changed record by record. A mapping is copied when a record first changes it."""

    __slots__ = ("_own",)

    open_transaction: list[Any] | None

    def __init__(self, before: MetadataContent | None = None) -> None:
        super().__init__(before)
        self._own: set[str] = set()
        if self.open_transaction is not None:
            self.open_transaction = list(self.open_transaction)

    def replay(self, record: Any) -> None:
        """Apply a record, or keep it until its metadata transaction ends (KIP-868).

        Raises Damage if the record does not fit the state, or if this version of kpybroker does not support its type.
        """
        kind = type(record)
        if kind is stored.BeginTransactionRecord:
            self.open_transaction = []
        elif kind is stored.AbortTransactionRecord:
            self.open_transaction = None
        elif kind is stored.EndTransactionRecord:
            held, self.open_transaction = self.open_transaction or [], None
            for inner in held:
                self._change(inner)
        elif self.open_transaction is not None:
            self.open_transaction.append(record)
        else:
            self._change(record)

    def _change(self, record: Any) -> None:
        change = CHANGES.get(type(record))
        if change is None:
            raise Damage(
                f"the metadata log has a {type(record).__name__}, which this version of kpybroker does not support"
            )
        try:
            change(self, record)
        except LookupError as missing:
            raise Damage(
                f"the metadata log has a {record} that refers to something that does not exist ({missing})"
            ) from missing

    def changing(self, part: Part[Mapping[Key, Item]]) -> dict[Key, Item]:
        name = part.name
        if name not in self._own:
            self._own.add(name)
            setattr(self, name, dict(part.of(self)))
        found: dict[Key, Item] = getattr(self, name)
        return found

    def put(self, part: Part[Value], value: Value) -> None:
        setattr(self, part.name, value)

    def settings_changed(self, resource: Resource) -> None:
        pass
