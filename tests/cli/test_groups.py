"""Tests of `kpybroker groups`: lag, resets that first show their plan, and groups with members, which are never
reset."""

from __future__ import annotations

import asyncio
from struct import pack

import pytest

from kpybroker.cli.group_facts import parse_assignment
from kpybroker.client.peer import Peer
from kpybroker.wire.rpc import consumer_group_heartbeat, find_coordinator, incremental_alter_configs, join_group
from kpybroker.world.real import RealWorld
from oracle.streams_scenes import passing
from tests.cli.shell import Shell
from tests.handlers.streaming import join


@pytest.fixture
def read(shell: Shell, topic: str, group: str) -> tuple[str, str]:
    """A topic with 5 and 1 records in its two partitions, and a group that has read 2 records of the first
    partition."""
    shell("topics", "create", topic, "--partitions", "2")
    shell("produce", topic, "--partition", "0", stdin=b"a\nb\nc\nd\ne\n")
    shell("produce", topic, "--partition", "1", stdin=b"z\n")
    set_to = shell("groups", "reset", group, "--topic", f"{topic}:0", "--to-offset", "2", "--execute")
    assert set_to.code == 0, set_to.err
    return topic, group


def offsets_of(shell: Shell, group: str) -> dict[int, tuple[int, int, int]]:
    told = shell("groups", "describe", group, "--json").json
    assert told["state"] == "Empty"
    return {row["partition"]: (row["committed"], row["end"], row["lag"]) for row in told["offsets"]}


def test_lag_is_what_is_left_to_read(shell: Shell, read: tuple[str, str]) -> None:
    topic, group = read
    assert offsets_of(shell, group) == {0: (2, 5, 3)}
    shell("produce", topic, "--partition", "0", stdin=b"f\n")
    assert offsets_of(shell, group) == {0: (2, 6, 4)}
    first, head, _, row = shell("groups", "describe", group).out.splitlines()
    assert first == f"{group}: Empty, 0 members, lag 4"
    assert head.split() == ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG"]
    assert row.split() == [topic, "0", "2", "6", "4"]
    assert group in {found["group"] for found in shell("groups", "list", "--json").json}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (("--to-earliest",), {0: 0, 1: 0}),
        (("--to-latest",), {0: 5, 1: 1}),
        (("--to-offset", "3"), {0: 3, 1: 1}),
        (("--to-time", "1970-01-01"), {0: 0, 1: 0}),
        (("--to-time", "2999-01-01T00:00:00Z"), {0: 5, 1: 1}),
    ],
    ids=str,
)
def test_a_reset_is_shown_and_then_done(
    shell: Shell, read: tuple[str, str], target: tuple[str, ...], expected: dict[int, int]
) -> None:
    topic, group = read
    plan = shell("groups", "reset", group, "--topic", topic, *target, "--json").json
    assert plan["executed"] is False
    assert {row["partition"]: row["new"] for row in plan["offsets"]} == expected
    assert {row["partition"]: row["old"] for row in plan["offsets"]} == {0: 2, 1: None}
    assert offsets_of(shell, group) == {0: (2, 5, 3)}, "a plan changes nothing"
    assert shell("groups", "reset", group, "--topic", topic, *target, "--execute").code == 0
    assert {partition: row[0] for partition, row in offsets_of(shell, group).items()} == expected


def test_a_shift_stays_inside_the_log(shell: Shell, read: tuple[str, str]) -> None:
    topic, group = read
    for shift, expected in (("1", 3), ("-2", 1), ("-100", 0), ("100", 5)):
        answer = shell("groups", "reset", group, "--topic", f"{topic}:0", "--shift-by", shift, "--execute")
        assert offsets_of(shell, group)[0][0] == expected
        assert ("outside" in answer.err) == (abs(int(shift)) == 100)


def test_a_plan_states_that_nothing_was_changed(shell: Shell, read: tuple[str, str]) -> None:
    topic, group = read
    answer = shell("groups", "reset", group, "--all-topics", "--to-latest")
    assert "--execute" in answer.err
    assert [line.split() for line in answer.out.splitlines()[2:]] == [
        [topic, "0", "2", "5", "0"],
        [topic, "1", "-", "1", "0"],
    ]


def test_groups_are_deleted(shell: Shell, read: tuple[str, str]) -> None:
    _, group = read
    assert shell("groups", "delete", group).out == f"deleted {group}\n"
    gone = shell("groups", "describe", group)
    assert (gone.code, f"there is no group {group}" in gone.err) == (1, True)


def test_members_are_not_overwritten(shell: Shell, read: tuple[str, str]) -> None:
    topic, group = read
    host, _, port = shell.bootstrap.rpartition(":")
    world = RealWorld(1)

    async def with_member() -> None:
        peer = await Peer.dial(world.network, host, int(port), client_id="a-member")
        await peer.negotiate()
        await peer.ask("FindCoordinator", find_coordinator.Request(key=group, coordinator_keys=[group]))
        protocols = [join_group.JoinGroupRequestProtocol(name="range", metadata=bytes(6))]
        joined = await peer.ask(
            "JoinGroup",
            join_group.Request(
                group_id=group,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                protocol_type="consumer",
                protocols=protocols,
            ),
            version=3,
        )
        assert joined.error_code == 0
        for command in (("reset", group, "--topic", topic, "--to-latest", "--execute"), ("delete", group)):
            answer = await asyncio.to_thread(shell, "groups", *command)
            assert answer.code == 1
            assert "1 member (a-member at 127.0.0.1); stop them first" in answer.err
        peer.close()

    asyncio.run(with_member())
    world.close()


def test_members_of_the_consumer_protocol_are_shown_and_not_overwritten(shell: Shell, read: tuple[str, str]) -> None:
    topic, group = read
    host, _, port = shell.bootstrap.rpartition(":")
    world = RealWorld(1)

    async def with_member() -> None:
        peer = await Peer.dial(world.network, host, int(port), client_id="a-member")
        await peer.negotiate()
        await peer.ask("FindCoordinator", find_coordinator.Request(key=group, coordinator_keys=[group]))
        joins = consumer_group_heartbeat.Request(group_id=group, member_id="m", rebalance_timeout_ms=30_000)
        joins.subscribed_topic_names, joins.topic_partitions = [topic], []
        assert (await peer.ask("ConsumerGroupHeartbeat", joins, version=1)).error_code == 0
        told = (await asyncio.to_thread(shell, "groups", "describe", group, "--json")).json
        assert told["state"] == "Stable"
        assert {(row["partition"], row["lag"]) for row in told["offsets"]} == {(0, 3), (1, None)}
        answer = await asyncio.to_thread(shell, "groups", "delete", group)
        assert (answer.code, "1 member (a-member at 127.0.0.1); stop them first" in answer.err) == (1, True)
        peer.close()

    asyncio.run(with_member())
    world.close()


def test_tasks_of_a_streams_group_are_shown_as_partitions(shell: Shell, read: tuple[str, str]) -> None:
    topic, group = read
    host, _, port = shell.bootstrap.rpartition(":")
    world = RealWorld(1)

    async def with_member() -> None:
        peer = await Peer.dial(world.network, host, int(port), client_id="a-member")
        await peer.negotiate()
        await peer.ask("FindCoordinator", find_coordinator.Request(key=group, coordinator_keys=[group]))
        at_once = incremental_alter_configs.AlterableConfig(
            name="streams.initial.rebalance.delay.ms", config_operation=0, value="0"
        )
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=32, resource_name=group, configs=[at_once]
        )
        await peer.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[resource]))
        assert (await join(peer, passing(topic), group)).error_code == 0
        told = (await asyncio.to_thread(shell, "groups", "describe", group, "--json")).json
        assert told["state"] == "Stable"
        assert {(row["partition"], row["lag"]) for row in told["offsets"]} == {(0, 3), (1, None)}
        answer = await asyncio.to_thread(shell, "groups", "delete", group)
        assert (answer.code, "1 member (a-member at 127.0.0.1); stop them first" in answer.err) == (1, True)
        peer.close()

    asyncio.run(with_member())
    world.close()


def test_assignments_are_parsed_and_invalid_ones_are_empty() -> None:
    data = pack(">hi", 1, 2) + pack(">h", 2) + b"ab" + pack(">iii", 2, 0, 7) + pack(">h", 1) + b"c" + pack(">i", 0)
    assert parse_assignment(data + pack(">i", -1)) == [("ab", 0), ("ab", 7)]
    for size in range(len(data)):
        assert parse_assignment(data[:size]) == []
    assert parse_assignment(pack(">hih", 0, 1, 0) + pack(">i", 2**31 - 1)) == []


@pytest.mark.parametrize(
    ("arguments", "code", "cause"),
    [
        (("groups", "describe", "no-such-group"), 1, "no-such-group"),
        (("groups", "delete", "no-such-group"), 1, "no-such-group"),
        (("groups", "reset", "g", "--topic", "t"), 2, "--to-earliest"),
        (("groups", "reset", "g", "--topic", "t", "--to-earliest", "--to-latest"), 2, "exactly one"),
        (("groups", "reset", "g", "--to-earliest"), 2, "--all-topics"),
        (("groups", "reset", "g", "--to-earliest", "--topic", "t", "--all-topics"), 2, "--all-topics"),
        (("groups", "reset", "g", "--to-earliest", "--topic", "t:x"), 2, "TOPIC:0,1,2"),
        (("groups", "reset", "g", "--to-earliest", "--topic", "no-such-topic"), 1, "no-such-topic"),
        (("groups", "reset", "g", "--to-time", "noon", "--topic", "t"), 2, "noon"),
        (("groups", "reset", "g", "--to-offset", "-1", "--topic", "t"), 2, "--to-offset"),
        (("groups", "reset", "no-such-group", "--to-latest", "--all-topics"), 1, "no-such-group"),
    ],
    ids=str,
)
def test_each_error_is_one_line(shell: Shell, arguments: tuple[str, ...], code: int, cause: str) -> None:
    answer = shell(*arguments)
    assert answer.code == code
    assert answer.err.count("\n") == 1
    assert cause in answer.err
    assert answer.out == ""
