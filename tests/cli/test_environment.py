"""Tests that `serve --from-env` reads variables as the apache/kafka:4.3.1 image does, and works with the variables of
our compose files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kpybroker.cli.environment import DATA, NO_SETTINGS, read_environment, setting_name
from kpybroker.client.peer import Peer
from kpybroker.config import parse_config
from kpybroker.world.real import real_world
from tests.asking import make, put
from tests.cli.shell import kpybroker_process

DEPLOY = Path(__file__).parents[2] / "deploy"
WAIT_S = 60
ADDRESSED = re.compile(r"(?<![\d.])(\d{4,5})(?!\d)")


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_NODE_ID", "node.id"),
        ("KAFKA_A_B__C___D", "a.b_c-d"),
        ("KAFKA_X____Y", "x-.y"),
        ("KAFKA_X_____Y", "x-_y"),
        ("KAFKA_X______Y", "x--y"),
        ("KAFKA_KAFKA_THING", "kafka.thing"),
        ("KAFKA_HEAP_OPT", "heap.opt"),
    ],
)
def test_names_are_converted_as_in_apache_kafka(variable: str, name: str) -> None:
    """The expected names are from kafka.docker.KafkaDockerWrapper."""
    assert setting_name(variable) == name


def test_values_are_parsed_as_in_a_properties_file() -> None:
    """As in Apache Kafka, leading blanks are removed, and backslashes are escape characters."""
    told = read_environment(
        {"KAFKA_A": "  a b", "KAFKA_B": "x\\ty", "KAFKA_C": "", "OTHER": "1", "KAFKA_LOG_DIR": "/x"}
    )
    assert told == {"a": "a b", "b": "x\ty", "c": "", "log.dir": "/x"}


def test_variables_for_the_jvm_and_kubernetes_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    links = ("KAFKA_SERVICE_HOST", "KAFKA_SERVICE_PORT_CLIENTS", "KAFKA_PORT", "KAFKA_PORT_9092_TCP_ADDR")
    told = read_environment({"KAFKA_NODE_ID": "1", **dict.fromkeys(NO_SETTINGS, "-X"), **dict.fromkeys(links, "1")})
    assert told == {"node.id": "1", "log.dirs": DATA}
    (line,) = caplog.messages
    assert "KAFKA_HEAP_OPTS" in line
    assert "no JVM" in line


def test_variables_override_a_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=9\nlog.dirs=/mounted\n")
    assert read_environment({"KAFKA_NODE_ID": "2"}, file) == {"node.id": "2", "log.dirs": "/mounted"}


def test_without_variables_the_node_serves_this_host() -> None:
    config = parse_config(read_environment({"KAFKA_KPYBROKER_HTTP_PORT": "8080"}))
    assert [(each.host, each.port) for each in config.advertised_listeners] == [("localhost", 9092)]
    assert config.process_roles == ("broker", "controller")
    assert config.log_dirs == (DATA,)
    assert config.http_port == 8080


def test_the_cluster_id_and_listeners_match_the_image() -> None:
    advertised = {"KAFKA_ADVERTISED_LISTENERS": "IN://kafka-1:19092,OUT://[::1]:9092", "KAFKA_PROCESS_ROLES": "broker"}
    told = read_environment({**advertised, "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw"})
    assert told["listeners"] == "IN://0.0.0.0:19092,OUT://0.0.0.0:9092"
    assert told["kpybroker.cluster.id"] == "4L6g3nShT-eMCtK--X86sw"
    alone = read_environment({"KAFKA_PROCESS_ROLES": "controller", "KAFKA_ADVERTISED_LISTENERS": ""})
    assert "listeners" not in alone
    assert "advertised.listeners" not in alone


def test_a_misspelt_variable_is_not_ignored() -> None:
    command = [sys.executable, "-m", "kpybroker", "serve", "--from-env"]
    environment = {**os.environ, "KAFKA_LOG_RETENTION_HUORS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "the environment" in line
    assert "log.retention.hours" in line


# ---- with the environment of compose files


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def here(services: dict[str, Any], tmp_path: Path) -> list[dict[str, str]]:
    """The services' variables, with each host name replaced by a loopback address, and each port by a free one."""
    addresses = {name: f"127.0.0.{number}" for number, name in enumerate(services, 1)}
    ports: dict[str, str] = {}
    found = []
    for name, service in services.items():
        variables = {"KAFKA_KPYBROKER_HTTP_PORT": str(free_port()), "KAFKA_LOG_DIRS": str(tmp_path / name)}
        for variable, value in service["environment"].items():
            text = str(value).replace("://:", f"://{addresses[name]}:").replace("localhost", addresses[name])
            for other, address in addresses.items():
                text = text.replace(other, address)
            if "://" in text or "@" in text:
                text = ADDRESSED.sub(lambda port: ports.setdefault(port[0], str(free_port())), text)
            variables[variable] = text
        found.append(variables)
    return found


@contextlib.contextmanager
def containers(file: str, tmp_path: Path) -> Iterator[list[dict[str, str]]]:
    """Run the image's command once for each service, with its variables. Yields when all processes are ready, and stops
    them at the end."""
    variables = here(yaml.safe_load((DEPLOY / file).read_text())["services"], tmp_path)
    processes = [kpybroker_process("serve", "--from-env", env={**os.environ, **each}) for each in variables]
    try:
        for process in processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("kpybroker ready"), process.communicate(timeout=WAIT_S)[1]
        yield variables
        for process in processes:
            process.terminate()
        assert [process.wait(WAIT_S) for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def health(variables: dict[str, str], path: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "kpybroker.cli.health", path]
    environment = {**os.environ, **variables}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    return ended.returncode, ended.stdout + ended.stderr


async def used(address: str, replicas: int) -> None:
    """Create a topic with this many replicas, as a client outside the containers. With one replica, also produce a
    record."""
    host, _, port = address.rpartition(":")
    peer = await Peer.dial(real_world().network, host, int(port))
    try:
        await peer.negotiate()
        await make(peer, "t", replicas=replicas)
        if replicas == 1:
            assert (await put(peer, "t", b"1", acks=-1)).error_code == 0
    finally:
        peer.close()


def outside(variables: dict[str, str]) -> str:
    (address,) = re.findall(r"HOST://([^,]+)", variables["KAFKA_ADVERTISED_LISTENERS"])
    return str(address)


@pytest.mark.slow
def test_one_container_serves(tmp_path: Path) -> None:
    with containers("compose-one.yaml", tmp_path) as (variables,):
        asyncio.run(used(outside(variables), replicas=1))
        assert health(variables, "/readyz")[0] == 0
        assert health(variables, "/nowhere")[0] == 1
    code, said = health(variables, "/readyz")
    assert code == 1
    assert len(said.splitlines()) == 1


@pytest.mark.slow
def test_three_containers_are_one_cluster(tmp_path: Path) -> None:
    with containers("compose.yaml", tmp_path) as variables:
        asyncio.run(used(outside(variables[1]), replicas=3))
        assert [health(each, "/healthz")[0] for each in variables] == [0, 0, 0]
