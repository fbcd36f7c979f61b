"""Voters join, leave, change their address and return with another disk, while the cluster continues to work."""

from __future__ import annotations

import asyncio
import shutil
import socket
from pathlib import Path

import pytest

from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError, ErrorCode, KafkaError
from kpybroker.raft.duties import readiness
from kpybroker.raft.log.identity import wanted_format
from kpybroker.replication.node import controller_channel
from kpybroker.storage.dirs.directory import open_directories
from kpybroker.storage.dirs.formatting import decode_id, encode_id
from kpybroker.wire.rpc import create_topics, update_features
from kpybroker.world.real import RealWorld
from tests.server.clustering import PATIENCE_S, Cluster, dialled, run_cluster
from tests.server.voting import CLUSTER_ID, Quorum, run_quorum

pytestmark = pytest.mark.slow

OTHER_CLUSTER = "b3B5YnJva2VyLXZvdGVycw"


def format_for(config: BrokerConfig) -> None:
    """Format a node's directory without asking the controllers, as `kpybroker storage format` does."""
    world = RealWorld(seed=0)
    for directory in open_directories(world, config.log_dirs, config.node_id, wanted_format(config)):
        world.disk.close(directory.lock)
    world.close()


async def makes(quorum: Quorum, name: str) -> None:
    """Check that the cluster works by creating a topic, which must become known to every node."""
    wanted = create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    told = await quorum.ask("CreateTopics", create_topics.Request(topics=[wanted], timeout_ms=5000))
    assert told.topics[0].error_code == 0, told.topics[0].error_message
    await quorum.until(
        lambda: all(name in node.broker.metadata.image.topics for node in quorum.nodes.values()), f"all know {name}"
    )


def test_a_quorum_grows_from_one_to_three_and_survives_its_first(tmp_path: Path) -> None:
    async def play(quorum: Quorum) -> None:
        await quorum.of_three()
        await quorum.voting(1, 2, 3)
        await makes(quorum, "of-three")
        await quorum.stop(1)
        assert await quorum.leader() in (2, 3)
        await makes(quorum, "without-the-first")
        await quorum.start(1)
        await quorum.voting(1, 2, 3)
        assert "without-the-first" in quorum.nodes[1].broker.metadata.image.topics

    run_quorum(tmp_path, play)


def test_a_removed_leader_hands_over_and_continues_as_an_observer(tmp_path: Path) -> None:
    async def play(quorum: Quorum) -> None:
        await quorum.of_three()
        former = await quorum.leader()
        told = await quorum.remove(former)
        assert told.error_code == 0, told.error_message
        left = tuple(node_id for node_id in (1, 2, 3) if node_id != former)
        await quorum.voting(*left)
        assert await quorum.leader() in left
        await makes(quorum, "later")
        assert (await quorum.remove(former)).error_code == ErrorCode.VOTER_NOT_FOUND
        await quorum.until_caught_up(former)
        assert (await quorum.add(former)).error_code == 0
        await quorum.voting(1, 2, 3)

    run_quorum(tmp_path, play)


def test_an_impossible_voter_changes_nothing(tmp_path: Path) -> None:
    async def play(quorum: Quorum) -> None:
        await quorum.start(1)
        await quorum.start(2)
        await quorum.until_caught_up(2)
        lone = quorum.nodes[1].broker.quorum
        for facts, code in (
            ({"voter_id": 1}, ErrorCode.DUPLICATE_VOTER),
            ({"voter_id": 3}, ErrorCode.REQUEST_TIMED_OUT),  # the node answers at that address, but has never fetched
            ({"voter_directory_id": bytes(range(16))}, ErrorCode.REQUEST_TIMED_OUT),
            ({"cluster_id": "x" * 22}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ):
            assert (await quorum.add(2, **facts)).error_code == code
        assert lone.voters.ids == (1,)
        assert lone.state.voters_end < lone.end
        both = await asyncio.gather(quorum.add(2), quorum.add(2))
        assert sorted(told.error_code for told in both) in (
            [0, ErrorCode.REQUEST_TIMED_OUT],  # one change at a time
            [0, ErrorCode.DUPLICATE_VOTER],
        )
        await quorum.voting(1, 2)
        await quorum.stop(2)
        await quorum.until(lambda: not lone.is_leader, "the first node detects that it has no majority")

    run_quorum(tmp_path, play)


def test_a_voter_reports_its_new_address(tmp_path: Path) -> None:
    async def play(quorum: Quorum) -> None:
        await quorum.of_three()
        for node_id in (2, await quorum.leader()):
            await quorum.stop(node_id)
            quorum.move(node_id)
            await quorum.start(node_id)

            def knows(node_id: int = node_id) -> bool:
                told = [node.broker.quorum.voters.get(node_id) for node in quorum.nodes.values()]
                return all(voter and voter.endpoints[0][2] == quorum.ports[node_id] for voter in told)

            await quorum.until(knows, "all know the new address")
        await quorum.voting(1, 2, 3)
        await makes(quorum, "after-moving")

    run_quorum(tmp_path, play)


def test_a_voter_with_a_new_disk_joins_by_itself(tmp_path: Path) -> None:
    """With controller.quorum.auto.join.enable, the old voter is removed and the new voter is added."""

    async def play(quorum: Quorum) -> None:
        await quorum.of_three()
        was = quorum.nodes[3].broker.quorum.driver.identity.directory_id
        await quorum.stop(3)
        shutil.rmtree(tmp_path / "3")
        quorum.own[3] = {"controller.quorum.auto.join.enable": "true"}
        await quorum.start(3)
        await quorum.voting(1, 2, 3)
        voter = quorum.nodes[1].broker.quorum.voters.get(3)
        assert voter is not None
        assert voter.directory_id == quorum.nodes[3].broker.quorum.driver.identity.directory_id != was
        assert (await quorum.remove(3, was)).error_code == ErrorCode.VOTER_NOT_FOUND

    run_quorum(tmp_path, play)


def test_a_second_node_with_a_voters_id_does_not_replace_it(tmp_path: Path) -> None:
    """The first node is still running. Otherwise the two nodes would replace each other forever."""

    async def play(quorum: Quorum) -> None:
        await quorum.of_three()
        voters = quorum.nodes[1].broker.quorum.voters
        follower = next(node_id for node_id, node in quorum.nodes.items() if not node.broker.quorum.is_leader)
        quorum.own[4] = {
            "node.id": str(follower),
            "process.roles": "controller",
            "listeners": f"CONTROLLER://127.0.0.1:{quorum.ports[4]}",
            "controller.quorum.auto.join.enable": "true",
        }
        await quorum.start(4)
        twin = quorum.nodes[4]
        assert "this node has the same id" in await asyncio.wait_for(twin.failed, PATIENCE_S)
        await quorum.stop(4)
        await quorum.voting(1, 2, 3)
        assert quorum.nodes[1].broker.quorum.voters == voters

    run_quorum(tmp_path, play)


def test_three_voters_that_are_listed_from_the_start(tmp_path: Path) -> None:
    """With a list in kpybroker.initial.controllers, the cluster has kraft.version 1, and nodes can start in any
    order."""

    async def play(quorum: Quorum) -> None:
        ids = {node_id: encode_id(bytes([node_id]) * 16) for node_id in (1, 2, 3)}
        listed = ",".join(f"{node_id}@127.0.0.1:{quorum.ports[node_id]}:{text}" for node_id, text in ids.items())
        quorum.own = {node_id: {"kpybroker.initial.controllers": listed} for node_id in ids}
        await quorum.start(1, 2, 3)
        await quorum.voting(1, 2, 3)
        for node_id, text in ids.items():
            assert quorum.nodes[node_id].broker.quorum.driver.identity.directory_id == decode_id(text)
        assert (await quorum.remove(3)).error_code == 0
        await quorum.voting(1, 2)

    run_quorum(tmp_path, play)


def test_static_voters_become_dynamic_ones(tmp_path: Path) -> None:
    """UpdateFeatures changes kraft.version from 0 to 1, once all voters have sent UpdateRaftVoter."""

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        leader = cluster.nodes[await cluster.leader()].broker.quorum
        wanted = update_features.FeatureUpdateKey(feature="kraft.version", max_version_level=1)

        def can_upgrade() -> bool:
            try:
                leader.check_kraft_version(1, is_upgrade=True)
            except KafkaError:
                return False
            return True

        await cluster.until(can_upgrade, "the voters have registered themselves with the leader")
        controller = cluster.nodes[leader.leader_id]
        request = update_features.Request(feature_updates=[wanted], timeout_ms=5000)
        told = await controller.broker.membership.channel.ask("UpdateFeatures", request, 5000)
        assert told.error_code == 0, told.error_message

        def upgraded() -> bool:
            quorums = [node.broker.quorum for node in cluster.nodes.values()]
            return all(quorum.kraft_version == 1 and quorum.voters.ids == (1, 2, 3) for quorum in quorums)

        await cluster.until(upgraded, "the log contains all voters")
        for node_id in (1, 2, 3):
            await cluster.stop(node_id)
            if node_id < 3:
                await cluster.start(node_id)
        cluster.settings["controller.quorum.voters"] = ",".join(
            f"{node_id}@127.0.0.1:{port}" for node_id, port in cluster.ports.items() if node_id != 1
        )
        with pytest.raises(ConfigError, match="the voters in the log in"):
            await cluster.start(3)
        assert await cluster.leader() in (1, 2)

    run_cluster(tmp_path, play)


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"kpybroker.cluster.id": OTHER_CLUSTER}, ", but the controllers at .* belong to cluster"),
        ({"node.id": "1"}, "this node has the same id|refused with DUPLICATE_BROKER_REGISTRATION"),
        ({"node.id": "2"}, "this node has the same id|refused with DUPLICATE_BROKER_REGISTRATION"),
    ],
    ids=["another cluster", "the leader's id", "a follower's id"],
)
def test_a_node_that_does_not_belong_to_the_cluster_is_told_so(tmp_path: Path, own: dict[str, str], why: str) -> None:
    async def play(quorum: Quorum) -> None:
        quorum.settings["broker.session.timeout.ms"] = "60000"  # so that the brokers are not fenced on a busy machine
        await quorum.of_three()
        quorum.own[4] = {**own, "initial.broker.registration.timeout.ms": "6000"}
        format_for(quorum.config(4))
        with pytest.raises(ConfigError, match=why):
            await quorum.start(4)
        await makes(quorum, "still")
        await quorum.voting(1, 2, 3)

    run_quorum(tmp_path, play)


def test_a_node_that_is_given_listeners_of_brokers_finds_no_leader(tmp_path: Path) -> None:
    """A broker's response to a Fetch of the metadata log names no leader of the quorum."""

    async def play(quorum: Quorum) -> None:
        await quorum.start(1)
        servers = {"controller.quorum.bootstrap.servers": quorum.nodes[1].bootstrap}
        quorum.own[2] = {**servers, "initial.broker.registration.timeout.ms": "1500"}
        with pytest.raises(ConfigError, match="found no leader of the metadata quorum within 1500 ms"):
            await quorum.start(2)
        await makes(quorum, "still")

    run_quorum(tmp_path, play)


def test_nothing_is_formatted_for_another_cluster_than_that_of_the_controllers(tmp_path: Path) -> None:
    """The node starts on the same directories when its cluster id has been corrected."""

    async def play(quorum: Quorum) -> None:
        await quorum.start(1)
        quorum.own[4] = {"kpybroker.cluster.id": OTHER_CLUSTER}
        port = quorum.ports[1]
        why = f"cluster {OTHER_CLUSTER}, but the controllers at 127.0.0.1:{port} belong to cluster {CLUSTER_ID}; set"
        with pytest.raises(ConfigError, match=why):
            await quorum.start(4)
        assert not list(quorum.root.glob("4/*"))
        quorum.own[4] = {}
        await quorum.start(4)
        await makes(quorum, "with-four")

    run_quorum(tmp_path, play)


def contents(path: Path) -> dict[str, bytes]:
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_static_voter_of_another_cluster_is_told_so(tmp_path: Path) -> None:
    """It does not wait for a leader, and the voters of the cluster go on."""

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2)
        cluster.settings["kpybroker.cluster.id"] = OTHER_CLUSTER
        asked = ", ".join(f"127.0.0.1:{cluster.ports[node_id]}" for node_id in (1, 2))
        with pytest.raises(ConfigError, match=f"but the controllers at {asked} belong to cluster"):
            await cluster.start(3)
        assert not list(cluster.root.glob("3/*"))
        format_for(cluster.config(3))
        del cluster.settings["kpybroker.cluster.id"]
        before = contents(cluster.root / "3")
        why = f"3 belongs to cluster {OTHER_CLUSTER}, but the controllers at {asked} belong to cluster"
        with pytest.raises(ConfigError, match=why):
            await cluster.start(3)
        assert contents(cluster.root / "3") == before
        assert await cluster.leader() in (1, 2)

    run_cluster(tmp_path, play)


def test_a_static_voter_is_told_of_another_cluster_that_starts_later(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        cluster.settings["kpybroker.cluster.id"] = OTHER_CLUSTER
        format_for(cluster.config(3))
        del cluster.settings["kpybroker.cluster.id"]
        # nodes 1 and 2 must not be refused because of node 3
        late = asyncio.ensure_future(cluster.start(3))
        await cluster.until(lambda: is_open(cluster.ports[3]), "3 waits for the other voters")
        await cluster.start(1, 2)
        others = ", ".join(f"{node_id} at 127.0.0.1:{cluster.ports[node_id]}" for node_id in (1, 2))
        why = f"the controllers {others} belong to another cluster: this node belongs to {OTHER_CLUSTER}; "
        with pytest.raises(ConfigError, match=why):
            await late

    run_cluster(tmp_path, play)


def test_a_lost_metadata_directory_is_not_taken_for_that_of_another_cluster(tmp_path: Path) -> None:
    """The settings do not have the id of the cluster any more, but the other directory has."""

    async def play(cluster: Cluster) -> None:
        first, other = (str(cluster.root / name) for name in ("first", "other"))
        cluster.settings |= {"kpybroker.cluster.id": OTHER_CLUSTER, "broker.session.timeout.ms": "60000"}
        await cluster.start(1, 2)
        cluster.settings["log.dirs"] = f"{first},{other}"
        await cluster.start(3)
        await cluster.stop(3)
        shutil.rmtree(first)
        del cluster.settings["kpybroker.cluster.id"]
        with pytest.raises(ConfigError, match="is empty, and the metadata log belongs there"):
            await cluster.start(3)

    run_cluster(tmp_path, play)


def test_a_minority_of_voters_names_the_missing_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log contains them while the voter waits, and the error contains them when it gives up."""

    async def play(cluster: Cluster) -> None:
        monkeypatch.setattr(readiness, "WARN_AFTER_MS", 1000)
        cluster.settings["initial.broker.registration.timeout.ms"] = "1500"
        lacks = ", ".join(f"{node_id} at 127.0.0.1:{cluster.ports[node_id]}" for node_id in (2, 3))
        lacks = f"2 of 3 controllers are out of reach: {lacks}"
        with pytest.raises(ConfigError, match=f"no leader of the metadata quorum within 1500 ms: {lacks}; check"):
            await cluster.start(1)
        assert [f"node 1 is waiting for a leader of the metadata quorum, for up to 1500 ms: {lacks}"] == [
            line for line in caplog.messages if "is waiting" in line
        ]
        cluster.settings["initial.broker.registration.timeout.ms"] = "60000"
        await cluster.start(1, 2)
        await cluster.leader()

    run_cluster(tmp_path, play)


@pytest.mark.parametrize("left", [0, 1])
def test_a_broker_names_the_controllers_that_are_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """Every response to a request that needs a controller names them. When a majority is back, requests are served."""
    monkeypatch.setattr(controller_channel, "IN_VAIN_MS", 0)

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3, 4)
        await cluster.leader()
        gone = [1, 2, 3][left:]
        for node_id in gone:
            await cluster.drop(node_id)
        broker = cluster.nodes[4]
        await cluster.until(lambda: broker.broker.quorum.lacks_majority, "the broker reports that there is no majority")
        shown = ", ".join(f"{node_id} at 127.0.0.1:{cluster.ports[node_id]}" for node_id in gone)
        why = f"{len(gone)} of 3 controllers are out of reach: {shown}"
        await cluster.until(
            lambda: broker.broker.quorum.no_leader_reason == why, "the broker has sent a request to each of them"
        )
        client = await dialled(broker)
        told = await client.ask("CreateTopics", create_topics.Request(topics=[create_topics.CreatableTopic(name="t")]))
        assert told.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert told.topics[0].error_message.endswith(f": the quorum has no leader, {why}")
        await cluster.start(*gone)
        await cluster.leader()
        await cluster.until(lambda: broker.broker.quorum.no_leader_reason is None, "all controllers can respond again")
        client.close()

    run_cluster(tmp_path, play)


def test_a_new_broker_reports_that_no_controller_answers(tmp_path: Path) -> None:
    async def play(quorum: Quorum) -> None:
        quorum.own[4] = {"initial.broker.registration.timeout.ms": "1500"}
        others = ", ".join(f"127.0.0.1:{quorum.ports[node_id]}" for node_id in (1, 2, 3))
        with pytest.raises(ConfigError, match=f"within 1500 ms: 3 of 3 controllers are out of reach: {others}; check"):
            await quorum.start(4)

    run_quorum(tmp_path, play)


@pytest.mark.parametrize("twin_of_the_leader", [True, False])
def test_a_second_node_with_a_static_voters_id_is_told_so(
    tmp_path: Path, twin_of_the_leader: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log contains the reason soon, and so does the error when it gives up. Meanwhile the cluster serves
    requests."""

    async def play(cluster: Cluster) -> None:
        monkeypatch.setattr(readiness, "WARN_AFTER_MS", 2000)
        cluster.settings["broker.session.timeout.ms"] = "60000"  # so that the brokers are not fenced on a busy machine
        await cluster.start(1, 2, 3)
        leader = await cluster.leader()
        twin_id = leader if twin_of_the_leader else next(each for each in (1, 2, 3) if each != leader)
        twin = Cluster(tmp_path / "twin", settings={"initial.broker.registration.timeout.ms": "4000"})
        twin.settings["kpybroker.cluster.id"] = cluster.nodes[leader].broker.storage.cluster_id
        twin.ports.update({node_id: port for node_id, port in cluster.ports.items() if node_id != twin_id})
        with pytest.raises(ConfigError, match=r"is another node running with this node\.id\?"):
            await twin.start(twin_id)
        assert any("another node running" in line for line in caplog.messages)
        assert await cluster.leader() in cluster.nodes  # on a busy machine they may have elected another leader by now

    run_cluster(tmp_path, play)


def test_static_voters_are_not_changed_by_settings(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        await cluster.stop(3)
        voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in cluster.ports.items() if node_id != 1)
        cluster.settings["controller.quorum.voters"] = voters
        cluster.settings["kpybroker.cluster.id"] = cluster.nodes[1].broker.storage.cluster_id
        with pytest.raises(ConfigError, match=r"lists 2, 3, but .* has the voters 1, 2, 3"):
            await cluster.start(3)
        await cluster.leader()

    run_cluster(tmp_path, play)
