"""Requests about streams groups for the matrix of refusals (`authorization_matrix.py`)."""

from __future__ import annotations

from kpybroker.security.authorizer import Operation
from kpybroker.wire.rpc import incremental_alter_configs, streams_group_describe, streams_group_heartbeat
from oracle.authorization import OTHER, Case, Denial, G, State, T
from oracle.streams_scenes import passing

GROUP = "streams"


def _beat(_: State) -> streams_group_heartbeat.Request:
    return streams_group_heartbeat.Request(group_id=GROUP, member_id="nobody", member_epoch=3)


def _join(*sources: str, group: str = GROUP, timeout_ms: int = 60_000) -> streams_group_heartbeat.Request:
    """A request to join. Without a timeout it is invalid, and does not change the group."""
    return streams_group_heartbeat.Request(
        group_id=group,
        member_id="m",
        rebalance_timeout_ms=timeout_ms,
        topology=passing(*sources),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
    )


def _at_once(group: str) -> incremental_alter_configs.Request:
    """Configure the group so that its first assignment does not wait for more members."""
    setting = incremental_alter_configs.AlterableConfig(
        name="streams.initial.rebalance.delay.ms", config_operation=0, value="0"
    )
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=32, resource_name=group, configs=[setting])
    return incremental_alter_configs.Request(resources=[resource])


def _described(group: str, *sources: str, what: str = "") -> Case:
    """A group that reads these topics, and one that does not exist."""
    denied: tuple[Denial, ...] = ((Operation.DESCRIBE, G, group),)
    return Case(
        "StreamsGroupDescribe",
        lambda _: streams_group_describe.Request(group_ids=[group, "none"]),
        (*denied, (Operation.DESCRIBE, T)) if "t" in sources else denied,
        what=what,
        before=(
            ("IncrementalAlterConfigs", 1, lambda _: _at_once(group)),
            ("StreamsGroupHeartbeat", 0, lambda _: _join(*sources, group=group)),
        ),
    )


STREAMS = (
    Case("StreamsGroupHeartbeat", _beat, ((Operation.READ, G, GROUP),)),
    Case(
        "StreamsGroupHeartbeat",
        lambda _: _join("t", OTHER, timeout_ms=-1),
        ((Operation.READ, G, GROUP), (Operation.DESCRIBE, T)),
        what="that joins",
    ),
    Case(
        "StreamsGroupHeartbeat",
        lambda _: _join(OTHER, timeout_ms=-1),
        ((Operation.READ, G, GROUP),),
        what="that joins with another topic",
    ),
    Case(
        "StreamsGroupHeartbeat",
        lambda _: _join("__consumer_offsets", "t"),
        ((Operation.READ, G, GROUP),),
        what="that reads an internal topic",
    ),
    _described("described streams", "t", OTHER),
    _described("other streams", OTHER, what="of another topic"),
)
"""Requests of clients. The broker creates internal topics in the background, so CREATE is tested in
compat_tests/test_internal_topic_rights.py."""
