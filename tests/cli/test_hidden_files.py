"""Tests that other users of the machine may read no file of a node, and that a node warns about property files with
secrets that other users may read."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kpybroker.client.peer import Peer
from kpybroker.config.property_files import read_properties
from kpybroker.server.node import Node
from kpybroker.storage.dirs.formatting import BOOTSTRAP_CHECKPOINT, METADATA_DIRECTORY
from tests.asking import make, put
from tests.cli.shell import kpybroker_process, ready
from tests.serving import run_scenario

JAAS = 'sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="of ann";\n'


@pytest.fixture
def generous() -> Iterator[None]:
    """A process whose new files may be read and changed by every user, unless the code sets other permissions."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> set[str]:
    return {
        str(path.relative_to(directory))
        for path in (directory, *directory.rglob("*"))
        if path.stat().st_mode & stat.S_IRWXO
    }


async def use(peer: Peer, node: Node) -> None:
    if node.broker.metadata.image.topic("t") is None:
        await make(peer, "t")
    await put(peer, "t", b"1")


def test_nothing_of_a_node_is_for_other_users(tmp_path: Path, generous: None) -> None:
    data = tmp_path / "data"
    for _ in range(2):
        run_scenario(data, use, {"metadata.log.max.record.bytes.between.snapshots": "1"})
        assert len(list(data.rglob("*"))) > 10
        assert list((data / METADATA_DIRECTORY).glob("*.checkpoint")), "a snapshot"
        assert not open_to_others(data)


def test_what_others_wrote_is_hidden_where_it_has_secrets(tmp_path: Path, generous: None) -> None:
    """Apache Kafka or an earlier version may have written the files: the permissions of the metadata's directory hide
    them."""
    data = tmp_path / "data"
    run_scenario(data, use)
    for path in (data, *data.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    run_scenario(data, use)
    assert not {METADATA_DIRECTORY, BOOTSTRAP_CHECKPOINT} & open_to_others(data)
    assert "t-0" in open_to_others(data), "what has no keys is left as it was"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604, 0o602])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        (JAAS, "sasl.jaas.config"),
        (f"listener.name.a.plain.{JAAS}", "listener.name.a.plain.sasl.jaas.config"),
        ("ssl.key.password=x\nssl.keystore.password=y\n", "ssl.key.password"),
        ("ssl.truststore.certificates=x\nsecurity.protocol=SSL\n", ""),
        ("", ""),
    ],
)
def test_a_file_with_secrets_that_others_may_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, text: str, named: str
) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "some.properties"
    path.write_text(text)
    path.chmod(mode)
    for _ in range(2):
        read_properties(path)
    said = [record.getMessage() for record in caplog.records]
    line = f"{path} holds {named}, and every user of this machine can read or change it; run: chmod o-rwx {path}"
    assert said == ([line] if named and mode & stat.S_IRWXO else [])


@pytest.mark.slow
def test_serve_and_commands_tell_it(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"{JAAS}listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path / 'data'}\n")
    config.chmod(0o644)
    process = kpybroker_process("serve", "--config", str(config))
    try:
        bootstrap = ready(process)["bootstrap"]
        client = tmp_path / "client.properties"
        client.write_text(JAAS)
        client.chmod(0o644)
        asked = kpybroker_process("--bootstrap", bootstrap, "--command-config", str(client), "topics", "list")
        _, said = asked.communicate()
        assert asked.returncode == 0
        assert said.count(f"run: chmod o-rwx {client}") == 1
    finally:
        process.terminate()
        _, said = process.communicate()
    assert said.count(f"WARNING kpybroker.config.property_files: {config} holds sasl.jaas.config") == 1


def test_the_files_of_several_nodes_may_have_secrets(tmp_path: Path, generous: None) -> None:
    secret = ("--set", "ssl.key.password=hush")
    process = kpybroker_process("dev", "--brokers", "2", "--port", "0", "--data-dir", str(tmp_path), *secret)
    try:
        ready(process)
        assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.properties")} == {0o600}
    finally:
        process.terminate()
        process.communicate()
