"""What scripted peers answer with where the recording has no answer to the same request: a poll, or a pre-vote by which
kpybroker looks for the leader."""

from __future__ import annotations

import json
from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.api import Api
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.rpc import api_versions, vote
from tests.conversations.lines import Arrival
from tests.conversations.script import METADATA_TOPIC_ID, SCRIPTS, Exchange

METADATA_FETCH = "Fetch of metadata"
"""The stream of Fetches of the metadata log."""


def steady(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request by which it is the same as another: how far the metadata has come does not count."""
    return {
        key: value for key, value in fields.items() if (name, key) != ("BrokerHeartbeat", "current_metadata_offset")
    }


def stream(api: Api, message: Any) -> str:
    """Requests of one stream are answered in their order: the metadata log and other partitions are two streams."""
    if api.name != "Fetch":
        return api.name
    is_metadata = message.topics and message.topics[0].topic_id == METADATA_TOPIC_ID
    return METADATA_FETCH if is_metadata else "Fetch of partitions"


def api_versions_of_a_broker() -> Any:
    """The response of a broker of Apache Kafka. Its followers do not ask for it."""
    said = json.loads((SCRIPTS.parent / "api_versions.json").read_text())[2]
    return parse(api_versions.Response, said["version"], bytes.fromhex(said["response"]))


def is_same_vote(said: Exchange, arrival: Arrival) -> bool:
    if said.api.name != "Vote":
        return True
    one, other = (fields["topics"][0]["partitions"][0] for fields in (said.asked_fields, arrival.fields))
    return all(one[name] == other[name] for name in ("pre_vote", "replica_epoch"))


def says_who_leads(said: Exchange) -> bool:
    """Whether Kafka's node was told no more than who leads."""
    return bool(said.told.responses[0].partitions[0].error_code)


def as_vote(said: Exchange, arrival: Arrival) -> bytes:
    """What the response to a Fetch says about the leader, as the response to a pre-vote."""
    leader = said.told.responses[0].partitions[0].current_leader
    epoch = arrival.fields["topics"][0]["partitions"][0]["replica_epoch"]
    told = vote.PartitionDataReply(
        error_code=ErrorCode.FENCED_LEADER_EPOCH if epoch < leader.leader_epoch else ErrorCode.NONE,
        leader_id=leader.leader_id,
        leader_epoch=leader.leader_epoch,
    )
    endpoints = [
        vote.NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port) for one in said.told.node_endpoints
    ]
    topic = vote.TopicDataReply(topic_name=METADATA_TOPIC, partitions=[told])
    return build(vote.Response(topics=[topic], node_endpoints=endpoints), arrival.version)


def is_idle(said: Exchange) -> bool:
    return all(not row.error_code and not row.records for topic in said.told.responses for row in topic.partitions)
