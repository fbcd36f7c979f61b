"""The registered brokers and controllers (KIP-631)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kpybroker.metadata.part import Metadata, Part
from kpybroker.wire.stored import metadata as stored


class BrokerEndpoint(NamedTuple):
    """The address of a broker's listener. `security_protocol` is one of Kafka's codes: 0 is PLAINTEXT."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


class BrokerImage(NamedTuple):
    """One registered broker, fenced or not; `epoch` is the offset of its registration record."""

    id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[BrokerEndpoint, ...]
    features: tuple[tuple[str, int, int], ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[bytes, ...]
    cordoned_log_dirs: tuple[bytes, ...] | None = None
    """Directories in which the broker creates no new partitions (KIP-1066)."""

    @property
    def is_cordoned(self) -> bool:
        """Whether all its directories are cordoned."""
        return bool(self.log_dirs) and set(self.log_dirs) <= set(self.cordoned_log_dirs or ())

    @classmethod
    def of(cls, record: stored.RegisterBrokerRecord) -> BrokerImage:
        return cls(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            tuple(BrokerEndpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
            tuple((f.name, f.min_supported_version, f.max_supported_version) for f in record.features),
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            tuple(record.log_dirs),
            None if record.cordoned_log_dirs is None else tuple(record.cordoned_log_dirs),
        )

    def changed(self, record: stored.BrokerRegistrationChangeRecord) -> BrokerImage:
        new: dict[str, Any] = {}
        if record.fenced:
            new["fenced"] = record.fenced == 1
        if record.in_controlled_shutdown:
            new["in_controlled_shutdown"] = True
        if record.log_dirs:
            new["log_dirs"] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            new["cordoned_log_dirs"] = tuple(record.cordoned_log_dirs)
        return self._replace(**new)

    def record(self) -> stored.RegisterBrokerRecord:
        return stored.RegisterBrokerRecord(
            broker_id=self.id,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.epoch,
            end_points=[
                stored.BrokerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
                for name, host, port, protocol in self.endpoints
            ],
            features=[
                stored.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, low, high in self.features
            ],
            rack=self.rack,
            fenced=self.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
            log_dirs=list(self.log_dirs),
            cordoned_log_dirs=None if self.cordoned_log_dirs is None else list(self.cordoned_log_dirs),
        )


def _register(metadata: Metadata, record: stored.RegisterBrokerRecord) -> None:
    metadata.changing(BROKERS)[record.broker_id] = BrokerImage.of(record)


def _change(metadata: Metadata, record: stored.BrokerRegistrationChangeRecord) -> None:
    brokers = metadata.changing(BROKERS)
    brokers[record.broker_id] = brokers[record.broker_id].changed(record)


def _fence(metadata: Metadata, record: stored.FenceBrokerRecord | stored.UnfenceBrokerRecord) -> None:
    brokers = metadata.changing(BROKERS)
    brokers[record.id] = brokers[record.id]._replace(fenced=isinstance(record, stored.FenceBrokerRecord))


def _unregister(metadata: Metadata, record: stored.UnregisterBrokerRecord) -> None:
    del metadata.changing(BROKERS)[record.broker_id]


def _records(brokers: Mapping[int, BrokerImage]) -> Iterator[Any]:
    return (broker.record() for broker in brokers.values())


def _register_controller(metadata: Metadata, record: stored.RegisterControllerRecord) -> None:
    metadata.changing(CONTROLLERS)[record.controller_id] = record


BROKERS: Part[Mapping[int, BrokerImage]] = Part(
    "brokers",
    {},
    {
        stored.RegisterBrokerRecord: _register,
        stored.BrokerRegistrationChangeRecord: _change,
        stored.FenceBrokerRecord: _fence,
        stored.UnfenceBrokerRecord: _fence,
        stored.UnregisterBrokerRecord: _unregister,
    },
    _records,
)
CONTROLLERS: Part[Mapping[int, stored.RegisterControllerRecord]] = Part(
    "controllers",
    {},
    {stored.RegisterControllerRecord: _register_controller},
    lambda controllers: controllers.values(),
)
