"""Acknowledgements in a ShareFetch or ShareAcknowledge. They are applied at once, and the response is sent when they
have been written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.serving.shares.places import check_read
from kpybroker.serving.shares.session import read_batches
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.partition import AcknowledgeType

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.call import Call
    from kpybroker.serving.shares.session import Named
    from kpybroker.shares.sessions import SessionKey
    from kpybroker.topics import TopicIdPartition

Answers = dict["TopicIdPartition", KafkaError | None]
"""By partition: None if its records are acknowledged, otherwise the error."""


class Acknowledging:
    """The acknowledgements of one request. They are applied when this object is created."""

    def __init__(self, broker: Broker, call: Call, member: SessionKey, rows: list[Named], *, may_renew: bool) -> None:
        self._answers: Answers = {}
        self._writing: dict[TopicIdPartition, asyncio.Future[KafkaError | None]] = {}
        for place, batches in rows:
            try:
                writing = _acknowledge(broker, call, member, place, batches, may_renew=may_renew)
            except KafkaError as refusal:
                self._answers[place] = refusal
                continue
            self._answers[place] = None
            if writing is not None:
                self._writing[place] = writing

    async def written(self) -> Answers:
        """Wait until the acknowledgements are written, and return the result for each partition."""
        for place, writing in self._writing.items():
            self._answers[place] = await asyncio.shield(writing)
        return self._answers


def _acknowledge(
    broker: Broker, call: Call, member: SessionKey, place: TopicIdPartition, batches: list[object], *, may_renew: bool
) -> asyncio.Future[KafkaError | None] | None:
    told = read_batches(batches, may_renew=may_renew)
    topic = check_read(broker, call, place)
    partition = broker.replication.hosting.leads(topic, place[1])
    led = broker.coordinators.share_leader.find(ShareKey(member.group_id, *place))
    if led is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "no member of the group has fetched from this partition on this broker",
        )
    if led.leader_epoch != partition.leader_epoch:
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader epoch has changed since the records were fetched"
        )
    renews = may_renew and any(AcknowledgeType.RENEW in each.types for each in told)
    if renews and not broker.coordinators.share_leader.rules(member.group_id).share_renew_acknowledge_enable:
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "share.renew.acknowledge.enable is false for this group")
    return led.acknowledge(member.member_id, told)
