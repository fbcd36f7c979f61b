"""Tests of `reassign`: a plan changes nothing, a move ends as planned, and a cancelled move has no effect."""

from __future__ import annotations

import pytest

from kpybroker.testing import Cluster
from tests.cli.shell import Shell


@pytest.fixture
def cluster(kpybroker_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs commands on three brokers."""
    return Shell(kpybroker_cluster.bootstrap, monkeypatch)


def replicas(shell: Shell, topic: str) -> list[list[int]]:
    (described,) = shell("topics", "describe", topic, "--json").json
    return [row["replicas"] for row in described["partitions"]]


def settings(shell: Shell) -> list[object]:
    """The throttles of all brokers."""
    return [
        row
        for broker in ("1", "2", "3")
        for row in shell("configs", "get", "--broker", broker, "--json").json
        if "throttled" in row["name"]
    ]


@pytest.mark.slow
def test_a_topic_moves_as_planned(cluster: Shell, topic: str) -> None:
    cluster("topics", "create", topic, "--partitions", "4", "--replication", "1")
    cluster("produce", topic, stdin=b"a\n" * 100)
    before = replicas(cluster, topic)
    start = ("reassign", "start", topic, "--brokers", "2,3", "--replication", "2")
    plan = cluster(*start, "--json").json
    assert plan["executed"] is False
    assert replicas(cluster, topic) == before
    assert "--execute" in cluster(*start).err
    done = cluster(*start, "--throttle", "100000000", "--execute", "--wait")
    assert done.code == 0, done.err
    after = replicas(cluster, topic)
    assert all(set(held) == {2, 3} for held in after)
    for move in plan["moves"]:
        assert after[move["partition"]] == move["new"]
    assert cluster("consume", topic, "--from-beginning").out == "a\n" * 100
    assert settings(cluster) == [], "the throttle ends with the move"
    assert cluster(*start, "--json").json["moves"] == []


def test_a_delivery_log_moves_with_its_topic(cluster: Shell, topic: str) -> None:
    cluster("topics", "create", topic, "--replication", "1", "--set", "kpybroker.delivery.scheduled=true")
    ((held,),) = replicas(cluster, topic)
    other = held % 3 + 1
    done = cluster(
        "reassign", "start", topic, "--brokers", str(other), "--replication", "1", "--execute", "--wait", "--json"
    )
    assert done.code == 0, done.err
    assert replicas(cluster, topic) == replicas(cluster, f"__scheduled.{topic}") == [[other]]


def test_views_are_not_moved_with_all_topics(cluster: Shell, topic: str) -> None:
    cluster("topics", "create", topic, "--replication", "1")
    cluster("topics", "create", f"{topic}.view", "--view-of", topic, "--where", "tombstone")
    ((held,),) = replicas(cluster, topic)
    plan = cluster(
        "reassign", "start", "--all-topics", "--brokers", str(held % 3 + 1), "--replication", "1", "--json"
    ).json
    assert topic in {move["topic"] for move in plan["moves"]}
    assert f"{topic}.view" not in {move["topic"] for move in plan["moves"]}


@pytest.mark.parametrize("name", ["", ".retired"])
def test_retired_partitions_are_moved_with_their_topic_or_alone(cluster: Shell, topic: str, name: str) -> None:
    """Also with a throttle, and when they are empty and not listed any more."""
    cluster("topics", "create", topic, "--partitions", "3", "--replication", "1")
    cluster("topics", "alter", topic, "--partitions", "1", "--grace", "0s")
    cluster("topics", "alter", topic, "--set", "kpybroker.partitions.empty=1,2")
    assert f"{topic}.retired" not in cluster("topics", "list").out
    before = replicas(cluster, topic)
    ((held,), _) = replicas(cluster, f"{topic}.retired")
    other = held % 3 + 1
    done = cluster(
        *("reassign", "start", f"{topic}{name}", "--brokers", str(other), "--replication", "1"),
        *("--throttle", "1000000", "--execute", "--wait", "--json"),
    )
    assert done.code == 0, done.err
    assert replicas(cluster, f"{topic}.retired") == [[other], [other]]
    assert replicas(cluster, topic) == (before if name else [[other]])


def test_a_move_is_cancelled(cluster: Shell, topic: str) -> None:
    """The throttle is a byte per second, so the move is still in progress."""
    cluster("topics", "create", topic, "--replication", "1")
    for _ in range(4):
        cluster("produce", topic, stdin=b"a" * 50_000)
    ((held,),) = replicas(cluster, topic)
    other = str(held % 3 + 1)
    begun = cluster("reassign", "start", topic, "--brokers", other, "--throttle", "1", "--execute")
    assert (begun.code, "reassign wait" in begun.err) == (0, True)
    (move,) = cluster("reassign", "list", "--json").json
    assert (move["topic"], move["old"], move["new"]) == (topic, [held], [int(other)])
    assert topic in cluster("reassign", "list").out
    assert len(settings(cluster)) == 6
    assert cluster("reassign", "cancel", topic).out == "cancelled 1 move\n"
    assert replicas(cluster, topic) == [[held]]
    assert cluster("reassign", "list", "--json").json == settings(cluster) == []


@pytest.mark.parametrize(
    ("arguments", "code", "cause"),
    [
        (("start", "t"), 2, "--brokers"),
        (("start", "t", "--brokers", "1,x"), 2, "1,2,3"),
        (("start", "--brokers", "1"), 2, "--all-topics"),
        (("start", "t", "--all-topics", "--brokers", "1"), 2, "--all-topics"),
        (("start", "--all-topics", "--brokers", "99"), 1, "broker 99"),
        (("start", "no-such-topic", "--brokers", "1"), 1, "no-such-topic"),
        (("cancel", "no-such-topic"), 1, "no-such-topic"),
    ],
    ids=str,
)
def test_each_error_is_one_line(shell: Shell, arguments: tuple[str, ...], code: int, cause: str) -> None:
    answer = shell("reassign", *arguments)
    assert (answer.code, answer.out) == (code, ""), answer
    assert answer.err.count("\n") == 1
    assert cause in answer.err
