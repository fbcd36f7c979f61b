"""Requests about streams groups for the matrix of refusals (`authorization_matrix.py`)."""

from __future__ import annotations

from kpybroker.security.authorizer import Operation
from kpybroker.wire.rpc import incremental_alter_configs, streams_group_describe, streams_group_heartbeat
from oracle.authorization import OTHER, Case, G, State, T
from oracle.streams_scenes import passing

GROUP, DESCRIBED = "streams", "described streams"


def _beat(_: State) -> streams_group_heartbeat.Request:
    return streams_group_heartbeat.Request(group_id=GROUP, member_id="nobody", member_epoch=3)


def _join(*sources: str, group: str = GROUP, timeout_ms: int = 60_000) -> streams_group_heartbeat.Request:
    """A request to join; without a timeout it is invalid, and changes nothing."""
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


def _at_once(_: State) -> incremental_alter_configs.Request:
    """The first assignment of the group does not wait for more members."""
    setting = incremental_alter_configs.AlterableConfig(
        name="streams.initial.rebalance.delay.ms", config_operation=0, value="0"
    )
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=32, resource_name=DESCRIBED, configs=[setting]
    )
    return incremental_alter_configs.Request(resources=[resource])


def _described(_: State) -> streams_group_describe.Request:
    return streams_group_describe.Request(group_ids=[DESCRIBED, "none"])


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
        lambda _: _join("__consumer_offsets", "t"),
        ((Operation.READ, G, GROUP),),
        what="that reads an internal topic",
    ),
    Case(
        "StreamsGroupDescribe",
        _described,
        ((Operation.DESCRIBE, G, DESCRIBED), (Operation.DESCRIBE, T)),
        before=(
            ("IncrementalAlterConfigs", 1, _at_once),
            ("StreamsGroupHeartbeat", 0, lambda _: _join("t", OTHER, group=DESCRIBED)),
        ),
    ),
)
"""Requests of clients. What CREATE matters for is in compat_tests/test_streams_acls.py: the broker creates internal
topics in the background."""
