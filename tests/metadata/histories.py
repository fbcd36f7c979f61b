"""Random histories of metadata records that a controller could write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from kpybroker.metadata.retirements import Retirement
from kpybroker.metadata.views import TopicView
from kpybroker.wire.stored import metadata as stored

NAMES = ["a", "b", "c", "__internal"]


def uuid_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


class History:
    """Draws records, one after another, that a controller could write."""

    def __init__(self, draw: st.DataObject) -> None:
        self._data = draw
        self.records: list[Any] = []
        self.topics: dict[str, tuple[bytes, int]] = {}
        self.brokers: set[int] = set()

    def pick(self, options: Sequence[Any]) -> Any:
        return self._data.draw(st.sampled_from(options))

    def some(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))

    def brokers_drawn(self) -> list[int]:
        return self._data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True))

    def write(self) -> None:
        kinds = [self.create, self.config, self.broker, self.small, self.kept, self.view]
        if self.topics:
            kinds += [self.grow, self.change, self.change, self.remove, self.clear_elr, self.retire]
        if self.brokers:
            kinds += [self.fence, self.change_broker, self.unregister]
        self.pick(kinds)()

    def partition(self, topic_id: bytes, index: int) -> stored.PartitionRecord:
        replicas = self.brokers_drawn()
        return stored.PartitionRecord(
            topic_id=topic_id,
            partition_id=index,
            replicas=replicas,
            isr=replicas[: self.some(1, 3)],
            leader=replicas[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=[uuid_of(1000 + broker) for broker in replicas],
            eligible_leader_replicas=self.pick([None, [1], [2, 3]]),
        )

    def view(self) -> None:
        view = TopicView(self.pick(NAMES), self.pick(NAMES), self.pick(["tombstone", "exists key"]))
        self.records.append(self.pick([view.record(), view.removal()]))

    def retire(self) -> None:
        name = self.pick(sorted(self.topics))
        topic_id, total = self.topics[name]
        in_use = self.some(1, total)
        retirement = Retirement(name, topic_id, total, in_use, 1000, frozenset(range(self.some(in_use, total), total)))
        self.records.append(retirement.removal() if in_use == total else retirement.record())

    def create(self) -> None:
        name = self.pick(NAMES)
        if name in self.topics:
            return
        topic_id = uuid_of(len(self.records) + 1)
        count = self.some(1, 3)
        self.topics[name] = (topic_id, count)
        self.records.append(stored.TopicRecord(name=name, topic_id=topic_id))
        self.records += [self.partition(topic_id, index) for index in range(count)]

    def grow(self) -> None:
        name = self.pick(sorted(self.topics))
        topic_id, count = self.topics[name]
        self.topics[name] = (topic_id, count + 1)
        self.records.append(self.partition(topic_id, count))

    def change(self) -> None:
        topic_id, count = self.topics[self.pick(sorted(self.topics))]
        change = stored.PartitionChangeRecord(topic_id=topic_id, partition_id=self.some(0, count - 1))
        if self.some(0, 1):
            change.leader = self.some(-1, 5)
        if self.some(0, 1):
            change.isr = self.brokers_drawn()
        if self.some(0, 1):
            change.adding_replicas = self.brokers_drawn()
        change.leader_recovery_state = self.some(-1, 1)
        self.records.append(change)

    def remove(self) -> None:
        topic_id, _ = self.topics.pop(self.pick(sorted(self.topics)))
        self.records.append(stored.RemoveTopicRecord(topic_id=topic_id))

    def clear_elr(self) -> None:
        self.records.append(stored.ClearElrRecord(topic_name=self.pick(["", *sorted(self.topics)])))

    def config(self) -> None:
        kind, name = self.pick([(2, name) for name in NAMES if name in self.topics] + [(4, ""), (4, "1")])
        value = self.pick([None, "1", "2"])
        self.records.append(
            stored.ConfigRecord(resource_type=kind, resource_name=name, name=self.pick(["x", "y"]), value=value)
        )

    def broker(self) -> None:
        number = self.some(1, 3)
        self.brokers.add(number)
        self.records.append(
            stored.RegisterBrokerRecord(
                broker_id=number,
                incarnation_id=uuid_of(self.some(1, 9)),
                broker_epoch=len(self.records),
                end_points=[stored.BrokerEndpoint(name="PLAINTEXT", host="h", port=9092, security_protocol=0)],
                features=[stored.BrokerFeature(name="metadata.version", max_supported_version=30)],
                rack=self.pick([None, "r"]),
                fenced=bool(self.some(0, 1)),
                log_dirs=[uuid_of(77)],
            )
        )

    def fence(self) -> None:
        kind = self.pick([stored.FenceBrokerRecord, stored.UnfenceBrokerRecord])
        self.records.append(kind(id=self.pick(sorted(self.brokers)), epoch=0))

    def change_broker(self) -> None:
        self.records.append(
            stored.BrokerRegistrationChangeRecord(
                broker_id=self.pick(sorted(self.brokers)),
                fenced=self.some(-1, 1),
                in_controlled_shutdown=self.some(0, 1),
                cordoned_log_dirs=self.pick([None, [], [uuid_of(77)]]),
            )
        )

    def unregister(self) -> None:
        number = self.pick(sorted(self.brokers))
        self.brokers.remove(number)
        self.records.append(stored.UnregisterBrokerRecord(broker_id=number))

    def small(self) -> None:
        self.records.append(
            self.pick(
                [
                    stored.NoOpRecord(),
                    stored.FeatureLevelRecord(name="metadata.version", feature_level=30),
                    stored.FeatureLevelRecord(name="group.version", feature_level=self.some(0, 1)),
                    stored.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=len(self.records)),
                    stored.RegisterControllerRecord(controller_id=self.some(1, 2), incarnation_id=uuid_of(3)),
                ]
            )
        )

    def kept(self) -> None:
        number = self.some(1, 2)
        user = [stored.EntityData(entity_type="user", entity_name=self.pick([None, "u"]))]
        self.records.append(
            self.pick(
                [
                    stored.ClientQuotaRecord(entity=user, key="k", value=1.5, remove=bool(self.some(0, 1))),
                    stored.AccessControlEntryRecord(id=uuid_of(number), resource_name="r", principal="User:u"),
                    stored.AccessControlEntryRecord(id=uuid_of(number), resource_name=str(number)),
                    stored.RemoveAccessControlEntryRecord(id=uuid_of(number)),
                    stored.UserScramCredentialRecord(name="u", mechanism=number, salt=b"s"),
                    stored.RemoveUserScramCredentialRecord(name="u", mechanism=number),
                    stored.DelegationTokenRecord(token_id=str(number), owner="User:u"),
                    stored.DelegationTokenRecord(
                        token_id=str(number),
                        owner="User:u:v",
                        requester="User:",
                        renewers=["User:a", "User:a"],
                        issue_timestamp=number,
                        max_timestamp=(1 << 63) - 1,
                        expiration_timestamp=5,
                    ),
                    stored.RemoveDelegationTokenRecord(token_id=str(number)),
                ]
            )
        )


def history_of(data: st.DataObject) -> History:
    history = History(data)
    for _ in range(data.draw(st.integers(0, 15))):
        history.write()
    return history
