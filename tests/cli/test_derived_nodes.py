"""Tests the nodes that `serve --brokers` derives from one properties file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kpybroker.cli.derived_nodes import derive_nodes
from kpybroker.cli.local_cluster import AUTO
from kpybroker.config import BrokerConfig, parse_config
from kpybroker.errors import ConfigError
from kpybroker.world.real import real_world

ID = "c" * 22
FILE = {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"}
QUORUM = {"controller.quorum.bootstrap.servers": "c:9093"}


def derived(properties: dict[str, str], brokers: int) -> list[BrokerConfig]:
    nodes = derive_nodes(real_world(), parse_config(properties, "file"), properties, brokers, "file")
    configs = [parse_config(node.settings) for node in nodes]
    assert [node.metadata_directory for node in nodes] == [config.metadata_log_dir for config in configs]
    assert [node.node_id for node in nodes] == [config.node_id for config in configs]
    return configs


def controllers(ports: list[int], node_id: int, own: int, *, by_name: bool) -> dict[str, str]:
    """The settings for controllers of other nodes on this machine, and this node."""
    if not by_name:
        servers = ",".join(f"127.0.0.1:{port}" for port in (own, *ports))
        return {"controller.quorum.bootstrap.servers": servers, "kpybroker.cluster.id": ID}
    voters = [f"{node_id}@127.0.0.1:{own}", *(f"{5000 + port}@127.0.0.1:{port}" for port in ports)]
    return {"controller.quorum.voters": ",".join(voters)}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ports=st.lists(st.integers(9090, 9100), min_size=2, max_size=4, unique=True),
    http=st.none() | st.integers(9101, 9104),
    node_id=st.integers(0, 1000),
    brokers=st.integers(2, 9),
    dirs=st.integers(1, 3),
    others=st.lists(st.integers(9090, 9110), max_size=3, unique=True),
    by_name=st.booleans(),
)
def test_the_nodes_are_separate_brokers_of_one_cluster(
    ports: list[int],
    http: int | None,
    node_id: int,
    brokers: int,
    dirs: int,
    others: list[int],
    by_name: bool,
    tmp_path: Path,
) -> None:
    """No port and no directory is used twice; the first node is that of the file; all have the same cluster. No broker
    has the port of a controller, which may be on the same machine."""
    others = [port for port in others if port != ports[0]]
    names = [f"L{place}" for place in range(len(ports))]
    where = [str(tmp_path / f"d{place}") for place in range(dirs)]
    properties = {
        "node.id": str(node_id),
        "listeners": ",".join(f"{name}://:{port}" for name, port in zip(names, ports, strict=True)),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        "inter.broker.listener.name": "L1",
        "controller.listener.names": "L0",
        "log.dirs": ",".join(where),
        **({} if http is None else {"kpybroker.http.port": str(http)}),
    }
    if others:
        properties |= controllers(others, node_id, ports[0], by_name=by_name)
    alone = parse_config(properties)
    first, *rest = derived(properties, brokers)
    assert [config.node_id for config in (first, *rest)] == list(range(node_id, node_id + brokers))
    assert (first.listeners, first.controller_listeners) == (alone.listeners, alone.controller_listeners)
    assert (first.log_dirs, first.process_roles) == (alone.log_dirs, alone.process_roles)
    used = [
        endpoint.port for config in (first, *rest) for endpoint in (*config.listeners, *config.controller_listeners)
    ]
    assert len({*used, http}) == len(used) + 1
    assert not {endpoint.port for config in rest for endpoint in config.listeners} & set(others)
    directories = [path for config in (first, *rest) for path in config.log_dirs]
    assert len(set(directories)) == dirs * brokers
    assert len({config.cluster_id for config in (first, *rest)}) == 1
    for config in rest:
        assert config.process_roles == ("broker",)
        if not others:
            servers = [(each.host, each.port) for each in config.controller_quorum_bootstrap_servers]
            assert servers == [("127.0.0.1", ports[0])]
        assert all(mine.port > theirs.port for mine, theirs in zip(config.listeners, alone.listeners, strict=True))
    if http is not None:
        assert {(config.http_host, config.http_port) for config in (first, *rest)} == {("127.0.0.1", 0)}


def test_more_nodes_do_not_change_the_first_ones(tmp_path: Path) -> None:
    properties = {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093,B://:9094", "log.dirs": str(tmp_path)}
    properties |= {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,B:PLAINTEXT"}
    ports = [[each.port for each in config.listeners] for config in derived(properties, 4)]
    assert ports == [[9092, 9094], [9095, 9096], [9097, 9098], [9099, 9100]]
    for brokers in (2, 3):
        assert [[each.port for each in config.listeners] for config in derived(properties, brokers)] == ports[:brokers]


def test_advertised_ports_move_like_those_of_the_listeners(tmp_path: Path) -> None:
    properties = {**QUORUM, "process.roles": "broker", "log.dirs": str(tmp_path), "metadata.log.dir": f"{tmp_path}/m"}
    properties |= {"listeners": "PLAINTEXT://[::1]:9092", "advertised.listeners": "PLAINTEXT://shop.example:19092"}
    configs = derived({**properties, "kpybroker.cluster.id": "c" * 22}, 3)
    shown = [(each.host, each.port) for config in configs for each in config.advertised_listeners]
    assert shown == [("shop.example", port) for port in (19092, 19094, 19095)], "9093 is a controller's"
    assert [config.listeners[0].host for config in configs] == ["::1"] * 3
    assert [config.metadata_log_dir for config in configs] == [
        f"{tmp_path}/m{end}" for end in ("", "/broker.2", "/broker.3")
    ]
    assert [config.controller_quorum_bootstrap_servers[0].host for config in configs] == ["c"] * 3


@pytest.mark.parametrize(
    ("settings", "brokers", "cause"),
    [
        ({"listeners": "PLAINTEXT://:0,CONTROLLER://:9093"}, 2, "PLAINTEXT has port 0"),
        ({"listeners": "PLAINTEXT://:9092"}, 2, "such as CONTROLLER://127.0.0.1:9093"),
        ({"listeners": "PLAINTEXT://:9092,CONTROLLER://:0"}, 2, "such as CONTROLLER://127.0.0.1:9093"),
        ({"controller.quorum.voters": "1@a:9093,2@b:9093,3@c:9093"}, 2, "voter 2 of controller.quorum.voters"),
        ({"process.roles": "controller", "listeners": "CONTROLLER://:9093"}, 2, "process.roles lacks broker"),
        ({"listeners": "PLAINTEXT://:65534,CONTROLLER://:9093"}, 3, "no port left above 65534"),
        (
            {"listeners": "A://:9092,CONTROLLER://:9093", "advertised.listeners": "A://h:65535"}
            | {"listener.security.protocol.map": "A:PLAINTEXT,CONTROLLER:PLAINTEXT"},
            2,
            "would have port 65537",
        ),
        ({}, 51, "from 1 to 50"),
    ],
    ids=str,
)
def test_what_cannot_be_derived_is_refused(settings: dict[str, str], brokers: int, cause: str, tmp_path: Path) -> None:
    properties = {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093", "log.dirs": str(tmp_path / "d"), **settings}
    with pytest.raises(ConfigError, match=cause):
        derived(properties, brokers)
    assert not (tmp_path / "d").exists()


def test_the_voters_of_other_machines_may_have_other_ids(tmp_path: Path) -> None:
    properties = {"node.id": "100", "controller.quorum.voters": "100@a:9093,200@b:9093,300@c:9093"}
    properties |= {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093", "log.dirs": str(tmp_path)}
    configs = derived(properties, 50)
    assert [config.node_id for config in configs] == list(range(100, 150))
    assert {config.controller_quorum_voters for config in configs} == {configs[0].controller_quorum_voters}


def test_a_broker_with_a_directory_is_never_left_out(tmp_path: Path) -> None:
    properties = {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093", "log.dirs": str(tmp_path)}
    formatted(tmp_path)
    for name in ("broker.2", "broker.4", "broker.5", "broker.06x", "broker-7"):
        (tmp_path / name).mkdir()
        if name != "broker.5":  # which was not formatted
            (tmp_path / name / "meta.properties").write_text("node.id=1\n")
    for brokers in (1, 2, 3):
        with pytest.raises(
            ConfigError, match=r"broker\.4 has the replicas of broker 4.* start with --brokers 4"
        ) as why:
            derived(properties, brokers)
        assert "remove the directory only if that succeeds" in str(why.value)
    assert len(derived(properties, 4)) == 4
    shutil.rmtree(tmp_path / "broker.4")
    assert len(derived(properties, 2)) == 2
    shutil.rmtree(tmp_path / "broker.2")
    assert len(derived(properties, 1)) == 1


def test_a_broker_beyond_the_last_place_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    properties = {**FILE, "log.dirs": str(tmp_path)}
    formatted(tmp_path)
    formatted(tmp_path / "broker.51")
    with pytest.raises(
        ConfigError, match=r"broker\.51 has .* at most 50 brokers ends at broker 50; move that directory"
    ):
        derived(properties, AUTO)
    assert "51" not in capsys.readouterr().err
    (tmp_path / "broker.51").rename(tmp_path / "broker.50")
    assert len(derived(properties, AUTO)) == 50
    assert "50 brokers (broker number 50 has data; " in capsys.readouterr().err


def test_a_log_directory_that_cannot_be_listed_does_not_stop_the_start(tmp_path: Path) -> None:
    """The node serves its other directories."""
    (tmp_path / "file").touch()
    formatted(tmp_path / "d")
    formatted(tmp_path / "d" / "broker.2")
    properties = {**FILE, "log.dirs": f"{tmp_path}/d,{tmp_path}/file"}
    assert len(derived(properties, 2)) == 2
    with pytest.raises(ConfigError, match="broker 2"):
        derived(properties, 1)
    shutil.rmtree(tmp_path / "d" / "broker.2")
    assert len(derived(properties, 1)) == 1


def test_only_a_node_that_founds_a_cluster_gets_a_new_id(tmp_path: Path) -> None:
    """A node that joins one must be given its id."""
    founder = {**FILE, "log.dirs": str(tmp_path)}
    ids = {config.cluster_id for config in derived(founder, 2)}
    assert len(ids) == 1
    assert None not in ids
    joining = {**founder, "controller.quorum.bootstrap.servers": "c:9093", "controller.quorum.auto.join.enable": "true"}
    several = {**founder, "controller.quorum.bootstrap.servers": "c:9093,d:9093"}
    broker = {**QUORUM, "process.roles": "broker", "listeners": "PLAINTEXT://:9092", "log.dirs": str(tmp_path)}
    named = {**founder, "kpybroker.initial.controllers": f"1@localhost:9093:{ID}"}
    for properties in (joining, several, named, broker):
        assert {config.cluster_id for config in derived(properties, 2)} == {None}


@pytest.mark.parametrize("lost", ["d1", "all but broker.2"])
@pytest.mark.parametrize("more", [{}, {"kpybroker.cluster.id": ID}], ids=["", "with its id"])
def test_a_lost_directory_never_becomes_a_new_cluster(lost: str, more: dict[str, str], tmp_path: Path) -> None:
    """The other brokers would take over its empty metadata, and drop their replicas."""
    properties = {**FILE, "log.dirs": f"{tmp_path}/d1,{tmp_path}/d2", **more}
    left = tmp_path / ("d2" if lost == "d1" else "d2/broker.2")
    formatted(left)
    with pytest.raises(ConfigError, match=f"{left} belongs to cluster {ID}, but {tmp_path}/d1 is empty"):
        derived(properties, 2)
    assert not (tmp_path / "d1").exists()
    formatted(tmp_path / "d1")
    assert {config.cluster_id for config in derived(properties, 2)} == {ID}


def formatted(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "meta.properties").write_text(f"version=1\ncluster.id={ID}\n")


def test_a_node_is_asked_for_its_pages_without_tls(tmp_path: Path) -> None:
    """By the parent process, on this machine."""
    certificate = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/none.pem"}
    properties = {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093,S://:9094", "log.dirs": str(tmp_path)}
    properties |= {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,S:SSL", **certificate}
    properties |= {"kpybroker.http.port": "8080", "kpybroker.http.tls.listener": "S"}
    assert parse_config(properties).http_tls_listener == "S"
    assert not any(config.http_tls_listener for config in derived(properties, 3))
