"""The authorization rule of each API: the operations that it requires, and the response to a refused caller.

A rule receives the request and the handler. It refuses the whole request, or it removes the rows that the caller may
not access, calls the handler with the rest, and adds the refused rows to the response. Produce and Fetch have no rule:
they call the authorizer when they look up their partitions (`serving/produce`, `serving/fetch`). Metadata and
DescribeTopicPartitions do the same for topics. Source: the section "Operations and resources on protocols" of Apache
Kafka's documentation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from inspect import isawaitable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from kpybroker.call import CONTROLLER, Call
from kpybroker.config.partition_keys import EMPTY, IN_USE
from kpybroker.config.resource_type import ResourceType
from kpybroker.config.view_keys import VIEW_OF
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.security.authorizer import CLUSTER_NAME, AclResource, Operation
from kpybroker.serving.authorization import DENIED, allows, allows_any, is_shown, may_act_as_a_node, require
from kpybroker.serving.fair_loop import Turns
from kpybroker.serving.streams_topology import check_topic_names, topics_of
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.api import Api, by_key
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.codec.primitives import ZERO_UUID
from kpybroker.wire.encoded import Encoded
from kpybroker.wire.rpc import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    find_coordinator,
    offset_delete,
    offset_fetch,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = (
    AclResource.TOPIC,
    AclResource.GROUP,
    AclResource.CLUSTER,
    AclResource.TRANSACTIONAL_ID,
)
REFUSED_A_TURN = 500
"""How many rows are refused in one turn of the event loop, which takes about a millisecond."""
_INNER: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "AddPartitionsToTxn": ("partitions", "results_by_partition"),
        "AlterPartitionReassignments": ("partitions", "partitions"),
        "AlterReplicaLogDirs": ("topics", ""),
        "DeleteRecords": ("partitions", "partitions"),
        "DescribeProducers": ("partition_indexes", "partitions"),
        "ElectLeaders": ("partitions", "partition_result"),
        "ListOffsets": ("partitions", "partitions"),
        "OffsetCommit": ("partitions", "partitions"),
        "OffsetDelete": ("partitions", "partitions"),
        "OffsetForLeaderEpoch": ("partitions", "partitions"),
        "TxnOffsetCommit": ("partitions", "partitions"),
    }
)
"""By API: the name of a list in each row of the request, and the name of the corresponding list in the response. If the
second name is empty, each element of the list has its own row in the response."""
_WHOLE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "AddPartitionsToTxn": ("v3_and_below_topics", "results_by_topic_v3_and_below"),
        "AlterClientQuotas": ("entries", "entries"),
        "AlterPartitionReassignments": ("topics", "responses"),
        "AlterReplicaLogDirs": ("dirs", "results"),
        "ElectLeaders": ("topic_partitions", "replica_election_results"),
        "OffsetCommit": ("topics", "topics"),
        "TxnOffsetCommit": ("topics", "topics"),
    }
)
"""APIs whose response has a refused row for each row of the request, even if the whole request is refused. The names
are those of the lists in the request and in the response."""
Refuse = Callable[[Any, KafkaError], Any]
"""Builds a response that refuses every row of a request."""


class Asked(NamedTuple):
    """A request, its sender, and its handler."""

    broker: Broker
    call: Call
    request: Any
    handle: Callable[[Broker, Call, Any], Any]
    refuse: Refuse

    def allows(self, operation: Operation, resource: AclResource, name: str = CLUSTER_NAME) -> bool:
        """Whether the caller may do the operation."""
        return allows(self.broker, self.call, operation, resource, name)

    def shows(self, operation: Operation, resource: AclResource, name: str = CLUSTER_NAME) -> bool:
        """Like `allows`, for parts of a response that are omitted without a refusal."""
        return is_shown(self.broker, self.call, operation, resource, name)

    def require(self, operation: Operation, resource: AclResource, name: str = CLUSTER_NAME) -> None:
        """Raise the authorization error of the resource unless the caller may do the operation."""
        require(self.broker, self.call, operation, resource, name)

    async def answer(self, request: Any = None) -> Any:
        """The handler's response to the request, or to `request` instead."""
        told = self.handle(self.broker, self.call, self.request if request is None else request)
        return await told if isawaitable(told) else told

    async def response(self, request: Any = None) -> Any:
        """Like `answer`, but a response that the controller has encoded is parsed."""
        told = await self.answer(request)
        return parse(by_key[self.call.api_key].response, self.call.version, told) if isinstance(told, Encoded) else told

    def turns(self) -> Turns:
        """Turns of the event loop, for work on many rows."""
        return Turns(self.broker.long_work)

    async def by_row(self, rows: str, told_rows: str, judge: Callable[[Any], ErrorCode | None]) -> Any:
        """The handler's response for the rows that `judge` allows, followed by the refused rows.

        `rows` and `told_rows` are the names of the lists in the request and the response. `judge` returns the error
        code of a row, or None.
        """
        turns = self.turns()
        passed: list[Any] = []
        refused: dict[ErrorCode, list[Any]] = {}
        async for row in turns.through(getattr(self.request, rows) or []):
            code = judge(row)
            if code is None:
                passed.append(row)
            else:
                refused.setdefault(code, []).append(row)
        if not refused:
            return await self.answer()
        responses = [await self.refuse_rows(rows, told_rows, every, code) for code, every in refused.items()]
        first = await self.response(_with_rows(self.request, rows, passed)) if passed else responses.pop(0)
        for response in responses:
            getattr(first, told_rows).extend(getattr(response, told_rows))
        return first

    async def refuse_rows(self, rows: str, told_rows: str, every: list[Any], code: ErrorCode) -> Any:
        """The response that refuses some rows of the request. It is built over several turns of the event loop."""
        turns = self.turns()
        inner, told_inner = _INNER.get(by_key[self.call.api_key].name, ("", ""))
        whole: Any = None
        for some, goes_on in _pieces(every, inner):
            if whole is not None:
                await turns.turn()
            told = self.refuse(_with_rows(self.request, rows, some), KafkaError(code))
            if whole is None:
                whole = told
                continue
            there, more = getattr(whole, told_rows), getattr(told, told_rows)
            if goes_on and told_inner:
                getattr(there[-1], told_inner).extend(getattr(more[0], told_inner))
            else:
                there.extend(more)
        return whole


Rule = Callable[[Asked], Awaitable[Any]]


def _with_rows(request: Any, rows: str, some: list[Any]) -> Any:
    fields = {name: getattr(request, name) for name in type(request).__slots__}
    return type(request)(**{**fields, rows: some})


def _pieces(every: list[Any], inner: str) -> Iterator[tuple[list[Any], bool]]:
    """Split rows into pieces of about REFUSED_A_TURN rows, where the elements of their lists `inner` count as rows.

    With each piece, yield whether it contains more elements of the last row of the previous piece.
    """
    some: list[Any] = []
    weight = 0
    for row in every:
        elements: list[Any] = getattr(row, inner) if inner else []
        if len(elements) <= REFUSED_A_TURN:
            some.append(row)
            weight += 1 + len(elements)
        if some and (weight >= REFUSED_A_TURN or some[-1] is not row):
            yield some, False
            some, weight = [], 0
        if len(elements) > REFUSED_A_TURN:
            for begin in range(0, len(elements), REFUSED_A_TURN):
                yield [_with_rows(row, inner, elements[begin : begin + REFUSED_A_TURN])], begin > 0
    if some:
        yield some, False


def _name(row: Any) -> str:
    name: str = row if isinstance(row, str) else row.name
    return name


# -- rules with one operation -----------------------------------------------------------------------------------------


def _whole(*either: Operation, resource: AclResource = CLUSTER, name: Callable[[Any], str] | None = None) -> Rule:
    """A rule that requires any of these operations on the cluster, or on the resource that the request names."""

    async def rule(asked: Asked) -> Any:
        of = CLUSTER_NAME if name is None else name(asked.request)
        if not any(asked.allows(operation, resource, of) for operation in either):
            raise KafkaError(DENIED[resource])
        return await asked.answer()

    return rule


def _group(request: Any) -> str:
    name: str = request.group_id
    return name


def _rows(
    operation: Operation,
    resource: AclResource,
    rows: str = "topics",
    told_rows: str = "topics",
    name: Callable[[Any], str] = _name,
) -> Rule:
    """A rule that requires the operation on the resource of each row."""

    async def rule(asked: Asked) -> Any:
        return await asked.by_row(
            rows, told_rows, lambda row: None if asked.allows(operation, resource, name(row)) else DENIED[resource]
        )

    return rule


# -- topics -----------------------------------------------------------------------------------------------------------


async def _create_topics(asked: Asked) -> Any:
    """Requires CREATE on the cluster or the topic and, for a view, READ on its source. The settings in the response
    require DESCRIBE_CONFIGS."""
    if not asked.shows(Operation.CREATE, CLUSTER):
        told = await asked.by_row("topics", "topics", lambda topic: _may_create(asked, topic))
    elif any(config.name == VIEW_OF for topic in asked.request.topics for config in topic.configs):
        told = await asked.by_row("topics", "topics", lambda topic: _may_view(asked, topic))
    else:
        told = await asked.answer()
    async for row in asked.turns().through(told.topics):
        if not row.error_code and not asked.shows(Operation.DESCRIBE_CONFIGS, TOPIC, row.name):
            row.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            row.num_partitions, row.replication_factor, row.configs = -1, -1, None
    return told


def _may_create(asked: Asked, topic: Any) -> ErrorCode | None:
    """The error for a caller that may not create the topic. The name of the metadata log is not checked here, because
    the controller refuses to create it anyway."""
    if topic.name == METADATA_TOPIC or asked.allows(Operation.CREATE, TOPIC, topic.name):
        return _may_view(asked, topic)
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _may_view(asked: Asked, topic: Any) -> ErrorCode | None:
    """The error for a caller that may not create the view, because it would read its source through it."""
    for config in topic.configs:
        if config.name == VIEW_OF and config.value and not asked.allows(Operation.READ, TOPIC, config.value):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return None


async def _delete_topics(asked: Asked) -> Any:
    """Requires DELETE and, for topics by name, DESCRIBE. Without DESCRIBE, the response does not contain the name of a
    topic that was requested by id."""
    if asked.shows(Operation.DELETE, CLUSTER):
        return await asked.answer()
    if asked.call.version < 6:
        return await asked.by_row("topic_names", "responses", lambda name: _may_delete(asked, name))
    topics = asked.broker.metadata.image

    def judge(row: Any) -> ErrorCode | None:
        if row.name is not None:
            return _may_delete(asked, row.name)
        if row.topic_id == ZERO_UUID:
            return None  # the handler refuses such a row
        found = topics.topic_by_id(row.topic_id)
        if found is None:
            return (
                ErrorCode.UNKNOWN_TOPIC_ID
            )  # the controller may have a topic that is new, but it does not know whether the caller may delete it
        if asked.allows(Operation.DELETE, TOPIC, found.name):
            return None
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED

    told = await asked.by_row("topics", "responses", judge)
    async for row in asked.turns().through(told.responses):
        if row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED and row.topic_id != ZERO_UUID:
            found = topics.topic_by_id(row.topic_id)
            if found is not None and asked.allows(Operation.DESCRIBE, TOPIC, found.name):
                row.name = found.name
    return told


def _may_delete(asked: Asked, name: str) -> ErrorCode | None:
    if asked.allows(Operation.DESCRIBE, TOPIC, name) and asked.allows(Operation.DELETE, TOPIC, name):
        return None
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def _offset_for_leader_epoch(asked: Asked) -> Any:
    if asked.shows(Operation.CLUSTER_ACTION, CLUSTER):
        return await asked.answer()
    return await _rows(Operation.DESCRIBE, TOPIC, name=lambda row: str(row.topic))(asked)


# -- settings ---------------------------------------------------------------------------------------------------------

_OF_SETTINGS: Mapping[int, AclResource] = MappingProxyType(
    {
        ResourceType.TOPIC: TOPIC,
        ResourceType.GROUP: GROUP,
        ResourceType.BROKER: CLUSTER,
        ResourceType.BROKER_LOGGER: CLUSTER,
        ResourceType.CLIENT_METRICS: CLUSTER,
    }
)


def _configs(operation: Operation, told_rows: str, *, loggers_at_controller: Operation | None = None) -> Rule:
    """A rule that requires the operation on the topic or group to which the settings belong, or on the cluster for
    other settings. For the loggers of a controller, it may require another operation. A change of a view requires READ
    on its source, too, because the new expression may show other records of it. A change of the partitions in use
    requires ALTER, too, as CreatePartitions does, and only nodes may say which of them are empty."""

    async def rule(asked: Asked) -> Any:
        def judge(row: Any) -> ErrorCode | None:
            resource = _OF_SETTINGS.get(row.resource_type)
            if resource is None:
                return None  # the handler refuses such a row
            name = CLUSTER_NAME if resource is CLUSTER else row.resource_name
            wanted = operation
            changed = {each.name for each in row.configs} if operation is Operation.ALTER_CONFIGS else ()
            if EMPTY in changed:  # with it, one could hide records
                return None if may_act_as_a_node(asked.broker, asked.call) else DENIED[resource]
            if IN_USE in changed and not asked.allows(Operation.ALTER, TOPIC, name):
                return DENIED[TOPIC]
            if row.resource_type == ResourceType.BROKER_LOGGER and asked.call.side == CONTROLLER:
                wanted = loggers_at_controller or operation
            if not asked.allows(wanted, resource, name):
                return DENIED[resource]
            view = asked.broker.metadata.image.view(name) if row.resource_type == ResourceType.TOPIC else None
            if operation is Operation.ALTER_CONFIGS and view is not None:
                return None if asked.allows(Operation.READ, TOPIC, view.source) else DENIED[TOPIC]
            return None

        return await asked.by_row("resources", told_rows, judge)

    return rule


# -- groups -----------------------------------------------------------------------------------------------------------


async def _join_group(asked: Asked) -> Any:
    if asked.allows(Operation.READ, GROUP, asked.request.group_id):
        return await asked.answer()
    response = asked.refuse(asked.request, KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    response.protocol_name = None if asked.call.version >= 7 else ""
    return response


async def _consumer_group_heartbeat(asked: Asked) -> Any:
    asked.require(Operation.READ, GROUP, asked.request.group_id)
    names = dict.fromkeys(asked.request.subscribed_topic_names or ())
    async for name in asked.turns().through(names):
        asked.require(Operation.DESCRIBE, TOPIC, name)
    return await asked.answer()


async def _streams_group_heartbeat(asked: Asked) -> Any:
    """READ on the group, and DESCRIBE on each topic of the topology, whose names are checked first."""
    asked.require(Operation.READ, GROUP, asked.request.group_id)
    if asked.request.topology is not None:
        check_topic_names(asked.request.topology)
        async for name in asked.turns().through(topics_of(asked.request.topology)):
            asked.require(Operation.DESCRIBE, TOPIC, name)
    return await asked.answer()


def _topic_of(asked: Asked, row: Any) -> str | None:
    """The name of the topic in a row, which has a name or, in later versions, an id; None if no topic has that id."""
    if row.name:
        return str(row.name)
    return asked.broker.metadata.topic_name(getattr(row, "topic_id", ZERO_UUID))


def _read_topics(asked: Asked) -> Callable[[Any], ErrorCode | None]:
    def judge(row: Any) -> ErrorCode | None:
        name = _topic_of(asked, row)
        return None if name is None or asked.allows(Operation.READ, TOPIC, name) else DENIED[TOPIC]

    return judge


async def _offset_commit(asked: Asked) -> Any:
    asked.require(Operation.READ, GROUP, asked.request.group_id)
    return await asked.by_row("topics", "topics", _read_topics(asked))


async def _txn_offset_commit(asked: Asked) -> Any:
    asked.require(Operation.WRITE, TRANSACTIONAL_ID, asked.request.transactional_id)
    return await _offset_commit(asked)


async def _offset_delete(asked: Asked) -> Any:
    def refuse(request: offset_delete.Request, refusal: KafkaError) -> offset_delete.Response:
        return offset_delete.Response(
            topics=[
                offset_delete.OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        offset_delete.OffsetDeleteResponsePartition(
                            partition_index=each.partition_index, error_code=refusal.code
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    asked.require(Operation.DELETE, GROUP, asked.request.group_id)
    return await asked._replace(refuse=refuse).by_row("topics", "topics", _read_topics(asked))


async def _consumer_group_describe(asked: Asked) -> Any:
    """Requires DESCRIBE on each group. The members of a group require DESCRIBE on all its topics."""
    told = await _rows(Operation.DESCRIBE, GROUP, "group_ids", "groups")(asked)
    turns = asked.turns()
    async for group in turns.through(told.groups):
        turns.add(len(group.members))
        topics = {
            topic.topic_name
            for member in group.members
            for assignment in (member.assignment, member.target_assignment)
            for topic in assignment.topic_partitions
        }
        topics.update(name for member in group.members for name in member.subscribed_topic_names)
        if not all(asked.allows(Operation.DESCRIBE, TOPIC, name) for name in topics):
            group.error_code, group.members = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []
            group.error_message = "The group has described topic(s) that the client is not authorized to describe."
    return told


async def _share_group_describe(asked: Asked) -> Any:
    """Requires DESCRIBE on each group. The members of a group require DESCRIBE on all its topics."""
    told = await _rows(Operation.DESCRIBE, GROUP, "group_ids", "groups")(asked)
    for group in told.groups:
        topics = {topic.topic_name for member in group.members for topic in member.assignment.topic_partitions}
        topics.update(name for member in group.members for name in member.subscribed_topic_names)
        if not all(asked.allows(Operation.DESCRIBE, TOPIC, name) for name in topics):
            group.error_code, group.members = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []
            group.error_message = "The group has described topic(s) that the client is not authorized to describe."
    return told


async def _streams_group_describe(asked: Asked) -> Any:
    """A caller that may not describe every topic of a group gets neither its topology nor its members."""
    told = await _rows(Operation.DESCRIBE, GROUP, "group_ids", "groups")(asked)
    for group in told.groups:
        topics = {} if group.topology is None else topics_of(group.topology)
        if not all(asked.allows(Operation.DESCRIBE, TOPIC, name) for name in topics):
            group.error_code, group.topology, group.members = ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, []
            group.error_message = "The described group uses topics that the client is not authorized to describe."
    return told


async def _describe_share_group_offsets(asked: Asked) -> Any:
    """Requires DESCRIBE on each group and topic. Topics without it are refused if the request names topics of the
    group, and are omitted otherwise."""
    named = {group.group_id for group in asked.request.groups if group.topics is not None}

    def judge(group: Any) -> ErrorCode | None:
        is_shown = asked.allows(Operation.DESCRIBE, GROUP, group.group_id)
        return None if is_shown else ErrorCode.GROUP_AUTHORIZATION_FAILED

    told = await asked.by_row("groups", "groups", judge)
    turns = asked.turns()
    for group in told.groups:
        shown = []
        async for topic in turns.through(group.topics):
            if asked.allows(Operation.DESCRIBE, TOPIC, topic.topic_name):
                shown.append(topic)
            elif group.group_id in named:
                topic.topic_id = ZERO_UUID
                for row in topic.partitions:
                    row.error_code, row.error_message = ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
                    row.start_offset, row.leader_epoch, row.lag = -1, 0, -1
                shown.append(topic)
        group.topics = shown
    return told


def _share_offsets(operation: Operation, refused: Callable[[Asked, Any, ErrorCode], Any]) -> Rule:
    """A rule that requires the operation on the group, and READ on each topic."""

    async def rule(asked: Asked) -> Any:
        def refuse(request: Any, refusal: KafkaError) -> Any:
            api = by_key[asked.call.api_key]
            return api.response(responses=[refused(asked, topic, refusal.code) for topic in request.topics])

        asked.require(operation, GROUP, asked.request.group_id)
        return await asked._replace(refuse=refuse).by_row(
            "topics",
            "responses",
            lambda topic: None if asked.allows(Operation.READ, TOPIC, topic.topic_name) else DENIED[TOPIC],
        )

    return rule


def _unaltered(asked: Asked, topic: Any, code: ErrorCode) -> Any:
    """The row of a refused topic. It contains the topic's id, as in Apache Kafka."""
    known = asked.broker.metadata.image.topic(topic.topic_name)
    return alter_share_group_offsets.AlterShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        topic_id=ZERO_UUID if known is None else known.id,
        partitions=[
            alter_share_group_offsets.AlterShareGroupOffsetsResponsePartition(
                partition_index=row.partition_index, error_code=code
            )
            for row in topic.partitions
        ],
    )


def _undeleted(_: Asked, topic: Any, code: ErrorCode) -> Any:
    return delete_share_group_offsets.DeleteShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, error_code=code)


async def _list_groups(asked: Asked) -> Any:
    told = await asked.answer()
    if not asked.shows(Operation.DESCRIBE, CLUSTER):
        told.groups = [
            row
            async for row in asked.turns().through(told.groups)
            if asked.shows(Operation.DESCRIBE, GROUP, row.group_id)
        ]
    return told


_COORDINATED: Mapping[int, tuple[Operation, AclResource]] = MappingProxyType(
    {
        0: (Operation.DESCRIBE, GROUP),
        1: (Operation.DESCRIBE, TRANSACTIONAL_ID),
        2: (Operation.CLUSTER_ACTION, CLUSTER),
    }
)
"""The operation and resource type that FindCoordinator requires, by key type: group, transactional id or share
partition."""


async def _find_coordinator(asked: Asked) -> Any:
    kind = _COORDINATED.get(asked.request.key_type)
    if kind is None:
        return await asked.answer()  # the handler refuses an unknown type
    operation, resource = kind

    def judge(key: str) -> ErrorCode | None:
        name = CLUSTER_NAME if resource is CLUSTER else key
        return None if asked.allows(operation, resource, name) else DENIED[resource]

    if asked.call.version >= 4:
        return await asked._replace(refuse=_no_coordinators).by_row("coordinator_keys", "coordinators", judge)
    code = judge(asked.request.key)
    if code is not None:
        return find_coordinator.Response(error_code=code, error_message=None, node_id=-1, host="", port=-1)
    return await asked.answer()


def _no_coordinators(request: find_coordinator.Request, refusal: KafkaError) -> find_coordinator.Response:
    return find_coordinator.Response(
        coordinators=[
            find_coordinator.Coordinator(
                key=key, node_id=-1, host="", port=-1, error_code=refusal.code, error_message=refusal.message
            )
            for key in request.coordinator_keys
        ]
    )


async def _offset_fetch(asked: Asked) -> Any:
    """Requires DESCRIBE on each group and topic. Topics without it are refused if the request names topics of the
    group, and are omitted otherwise."""
    if asked.call.version < 8:
        return await _offset_fetch_of_one(asked)
    refused: dict[str, list[Any]] = {}

    async def handle(broker: Broker, call: Call, request: Any) -> Any:
        turns = asked.turns()
        for group in request.groups:
            if group.topics is not None:
                refused[group.group_id] = await _take_undescribed(asked, group, turns)
        return await asked.answer(request)

    def judge(group: Any) -> ErrorCode | None:
        is_shown = asked.allows(Operation.DESCRIBE, GROUP, group.group_id)
        return None if is_shown else ErrorCode.GROUP_AUTHORIZATION_FAILED

    told = await asked._replace(refuse=_no_offsets, handle=handle).by_row("groups", "groups", judge)
    turns = asked.turns()
    for group in told.groups:
        if not group.error_code:
            group.topics = await _described(asked, group.topics, turns) + refused.get(group.group_id, [])
    return told


def _no_offsets(request: offset_fetch.Request, refusal: KafkaError) -> offset_fetch.Response:
    return offset_fetch.Response(
        groups=[
            offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, error_code=refusal.code)
            for group in request.groups
        ]
    )


async def _offset_fetch_of_one(asked: Asked) -> Any:
    request = asked.request
    asked.require(Operation.DESCRIBE, GROUP, request.group_id)
    turns = asked.turns()
    refused = [] if request.topics is None else await _take_undescribed(asked, request, turns)
    told = await asked.answer()
    if not told.error_code:
        told.topics = await _described(asked, told.topics, turns) + refused
    return told


async def _take_undescribed(asked: Asked, group: Any, turns: Turns) -> list[Any]:
    """Remove the topics that the caller may not describe from a request. Return their rows for the response."""
    hidden: list[Any] = []
    shown: list[Any] = []
    async for topic in turns.through(group.topics):
        name = _topic_of(asked, topic)
        is_hidden = name is not None and not asked.allows(Operation.DESCRIBE, TOPIC, name)
        (hidden if is_hidden else shown).append(topic)
    if not hidden:
        return []
    group.topics = shown
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    row: Any
    partition: Any
    row, partition = offset_fetch.OffsetFetchResponseTopics, offset_fetch.OffsetFetchResponsePartitions
    if asked.call.version < 8:
        row, partition = offset_fetch.OffsetFetchResponseTopic, offset_fetch.OffsetFetchResponsePartition
    refused = []
    async for topic in turns.through(hidden):
        turns.add(len(topic.partition_indexes))
        partitions = [
            partition(
                partition_index=index, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=code
            )
            for index in topic.partition_indexes
        ]
        refused.append(row(name=topic.name, partitions=partitions))
        if asked.call.version >= 10:
            refused[-1].topic_id = topic.topic_id
    return refused


async def _described(asked: Asked, topics: list[Any], turns: Turns) -> list[Any]:
    shown = []
    async for topic in turns.through(topics):
        name = _topic_of(asked, topic)
        if name is None or asked.shows(Operation.DESCRIBE, TOPIC, name):
            shown.append(topic)
    return shown


# -- transactions -----------------------------------------------------------------------------------------------------


def _transactional_id(request: Any) -> str:
    name: str = request.transactional_id
    return name


async def _init_producer_id(asked: Asked) -> Any:
    if asked.request.transactional_id is not None:
        asked.require(Operation.WRITE, TRANSACTIONAL_ID, asked.request.transactional_id)
    elif not asked.allows(Operation.IDEMPOTENT_WRITE, CLUSTER) and not allows_any(
        asked.broker, asked.call, Operation.WRITE, TOPIC
    ):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return await asked.answer()


async def _add_partitions_to_txn(asked: Asked) -> Any:
    """Requires WRITE on all topics. If the caller lacks it for one topic, no partition is added."""
    if asked.call.version >= 4:
        asked.require(Operation.CLUSTER_ACTION, CLUSTER)
        return await asked.answer()
    request = asked.request
    asked.require(Operation.WRITE, TRANSACTIONAL_ID, request.v3_and_below_transactional_id)
    turns = asked.turns()
    refused = {
        topic.name
        async for topic in turns.through(request.v3_and_below_topics)
        if not asked.allows(Operation.WRITE, TOPIC, topic.name)
    }
    if not refused:
        return await asked.answer()
    told = await asked.refuse_rows(
        "v3_and_below_topics",
        "results_by_topic_v3_and_below",
        request.v3_and_below_topics,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )
    image = asked.broker.metadata.image
    async for topic in turns.through(told.results_by_topic_v3_and_below):
        if topic.name not in refused:
            turns.add(len(topic.results_by_partition))
            known = image.topic(topic.name)
            for row in topic.results_by_partition:
                there = known is not None and 0 <= row.partition_index < len(known.partitions)
                row.partition_error_code = (
                    ErrorCode.OPERATION_NOT_ATTEMPTED if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
    return told


async def _add_offsets_to_txn(asked: Asked) -> Any:
    asked.require(Operation.WRITE, TRANSACTIONAL_ID, asked.request.transactional_id)
    asked.require(Operation.READ, GROUP, asked.request.group_id)
    return await asked.answer()


async def _describe_transactions(asked: Asked) -> Any:
    told = await _rows(Operation.DESCRIBE, TRANSACTIONAL_ID, "transactional_ids", "transaction_states")(asked)
    turns = asked.turns()
    async for state in turns.through(told.transaction_states):
        turns.add(len(state.topics))
        state.topics = [topic for topic in state.topics if asked.shows(Operation.DESCRIBE, TOPIC, topic.topic)]
    return told


async def _list_transactions(asked: Asked) -> Any:
    told = await asked.answer()
    told.transaction_states = [
        row
        async for row in Turns(asked.broker.long_work).through(told.transaction_states)
        if asked.shows(Operation.DESCRIBE, TRANSACTIONAL_ID, row.transactional_id)
    ]
    return told


# -- the cluster ------------------------------------------------------------------------------------------------------


async def _describe_cluster(asked: Asked) -> Any:
    """Requires ALTER on the cluster if the request was sent to a controller, and nothing on a broker."""
    if asked.call.side == CONTROLLER:
        asked.require(Operation.ALTER, CLUSTER)
    return await asked.answer()


_ALTER = _whole(Operation.ALTER)
_DESCRIBE = _whole(Operation.DESCRIBE)
_CLUSTER_ACTION = _whole(Operation.CLUSTER_ACTION)
_UNKNOWN = _whole(Operation.ALL)

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "AddOffsetsToTxn": _add_offsets_to_txn,
        "AddPartitionsToTxn": _add_partitions_to_txn,
        "AddRaftVoter": _ALTER,
        "AllocateProducerIds": _CLUSTER_ACTION,
        "AlterClientQuotas": _whole(Operation.ALTER_CONFIGS),
        "AlterConfigs": _configs(Operation.ALTER_CONFIGS, "responses"),
        "AlterPartition": _CLUSTER_ACTION,
        "AlterPartitionReassignments": _ALTER,
        "AlterReplicaLogDirs": _ALTER,
        "AlterShareGroupOffsets": _share_offsets(Operation.READ, _unaltered),
        "AlterUserScramCredentials": _ALTER,
        "AssignReplicasToDirs": _CLUSTER_ACTION,
        "BeginQuorumEpoch": _CLUSTER_ACTION,
        "BrokerHeartbeat": _CLUSTER_ACTION,
        "BrokerRegistration": _CLUSTER_ACTION,
        "ControllerRegistration": _CLUSTER_ACTION,
        "ConsumerGroupDescribe": _consumer_group_describe,
        "ConsumerGroupHeartbeat": _consumer_group_heartbeat,
        "CreatePartitions": _rows(Operation.ALTER, TOPIC, told_rows="results"),
        "CreateTopics": _create_topics,
        "DeleteGroups": _rows(Operation.DELETE, GROUP, "groups_names", "results"),
        "DeleteRecords": _rows(Operation.DELETE, TOPIC),
        "DeleteShareGroupOffsets": _share_offsets(Operation.DELETE, _undeleted),
        "DeleteShareGroupState": _CLUSTER_ACTION,
        "DeleteTopics": _delete_topics,
        "DescribeClientQuotas": _whole(Operation.DESCRIBE_CONFIGS),
        "DescribeCluster": _describe_cluster,
        "DescribeConfigs": _configs(Operation.DESCRIBE_CONFIGS, "results"),
        "DescribeGroups": _rows(Operation.DESCRIBE, GROUP, "groups", "groups"),
        "DescribeLogDirs": _DESCRIBE,
        "DescribeProducers": _rows(Operation.READ, TOPIC),
        "DescribeQuorum": _DESCRIBE,
        "DescribeShareGroupOffsets": _describe_share_group_offsets,
        "DescribeTransactions": _describe_transactions,
        "DescribeUserScramCredentials": _DESCRIBE,
        "ElectLeaders": _ALTER,
        "EndQuorumEpoch": _CLUSTER_ACTION,
        "EndTxn": _whole(Operation.WRITE, resource=TRANSACTIONAL_ID, name=_transactional_id),
        "Envelope": _CLUSTER_ACTION,
        "FetchSnapshot": _CLUSTER_ACTION,
        "FindCoordinator": _find_coordinator,
        "Heartbeat": _whole(Operation.READ, resource=GROUP, name=_group),
        "IncrementalAlterConfigs": _configs(
            Operation.ALTER_CONFIGS, "responses", loggers_at_controller=Operation.CLUSTER_ACTION
        ),
        "InitProducerId": _init_producer_id,
        "InitializeShareGroupState": _CLUSTER_ACTION,
        "JoinGroup": _join_group,
        "LeaveGroup": _whole(Operation.READ, resource=GROUP, name=_group),
        "ListConfigResources": _whole(Operation.DESCRIBE_CONFIGS),
        "ListGroups": _list_groups,
        "ListOffsets": _rows(Operation.DESCRIBE, TOPIC),
        "ListPartitionReassignments": _DESCRIBE,
        "ListTransactions": _list_transactions,
        "OffsetCommit": _offset_commit,
        "OffsetDelete": _offset_delete,
        "OffsetFetch": _offset_fetch,
        "OffsetForLeaderEpoch": _offset_for_leader_epoch,
        "ReadShareGroupState": _CLUSTER_ACTION,
        "ReadShareGroupStateSummary": _CLUSTER_ACTION,
        "RemoveRaftVoter": _ALTER,
        "ShareAcknowledge": _whole(Operation.READ, resource=GROUP, name=_group),
        "ShareFetch": _whole(Operation.READ, resource=GROUP, name=_group),
        "ShareGroupDescribe": _share_group_describe,
        "ShareGroupHeartbeat": _consumer_group_heartbeat,
        "StreamsGroupDescribe": _streams_group_describe,
        "StreamsGroupHeartbeat": _streams_group_heartbeat,
        "SyncGroup": _whole(Operation.READ, resource=GROUP, name=_group),
        "TxnOffsetCommit": _txn_offset_commit,
        "UnregisterBroker": _ALTER,
        "UpdateFeatures": _ALTER,
        "UpdateRaftVoter": _CLUSTER_ACTION,
        "Vote": _CLUSTER_ACTION,
        "WriteShareGroupState": _CLUSTER_ACTION,
        "WriteTxnMarkers": _whole(Operation.ALTER, Operation.CLUSTER_ACTION),
    }
)
"""The rules by API name."""


async def authorized(
    broker: Broker, api: Api, call: Call, request: Any, handle: Callable[[Broker, Call, Any], Any], refuse: Refuse
) -> Any:
    """Call the handler with the parts of a request for which the caller is authorized. Return the response with those
    and the refused parts. Raises KafkaError.

    An API without a rule requires ALL operations on the cluster.
    """
    asked = Asked(broker, call, request, handle, refuse)
    try:
        return await RULES.get(api.name, _UNKNOWN)(asked)
    except KafkaError as refusal:
        if api.name in _WHOLE and refusal.code in DENIED.values():
            rows, told_rows = _WHOLE[api.name]
            if every := getattr(request, rows):
                return await asked.refuse_rows(rows, told_rows, every, refusal.code)
        raise
