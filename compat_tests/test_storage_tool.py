"""Compares `kpybroker storage` with kafka-storage: either broker starts on a directory that was formatted for the
other."""

import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from compat_tests.conftest import Running
from compat_tests.dumps import dump_everything
from kpybroker.storage.dirs.formatting import read_bootstrap
from kpybroker.wire.stored.metadata import UserScramCredentialRecord
from kpybroker.world.real import RealWorld
from oracle.broker import KPyBroker
from oracle.kafka import CLUSTER_ID, Kafka
from oracle.tools import Ran, tool


def ours(*args: str) -> Ran:
    """Run `kpybroker storage`."""
    ran = subprocess.run(
        [sys.executable, "-m", "kpybroker", "storage", *args], capture_output=True, text=True, check=False
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def theirs(*args: str) -> Ran:
    return tool("kafka-storage", *args)


class Formatted(Kafka):
    """Apache Kafka on a directory that kpybroker has formatted."""

    def _format(self) -> None:
        ours("format", *self.format_options, "-t", CLUSTER_ID, "-c", str(self.properties_file)).ok()


class Adopting(KPyBroker):
    """kpybroker on a directory that kafka-storage has formatted."""

    def start(self) -> Self:
        config = self.directory / "server.properties"
        config.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=127.0.0.1:9093\n"
            "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\ncontroller.listener.names=CONTROLLER\n"
            f"log.dirs={self.data}\n"
        )
        if not self.data.exists():
            theirs("format", "--standalone", "-t", CLUSTER_ID, "-c", str(config)).ok()
        return super().start()


def test_either_broker_starts_a_directory_formatted_by_the_other(target_name: str, tmp_path: Path) -> None:
    broker: Running = Formatted(tmp_path) if target_name == "kafka" else Adopting(tmp_path)
    with broker.start():
        broker.tool("kafka-topics", "--create", "--topic", "t", "--partitions", "2").ok()
        broker.tool("kafka-console-producer", "--topic", "t", stdin="one\ntwo\n").ok()
        broker.stop()
        dump_everything(broker.data)
        broker.restart()
        read = broker.tool("kafka-console-consumer", "--topic", "t", "--from-beginning", "--max-messages", "2").ok()
        assert sorted(read.split()) == ["one", "two"]


@pytest.mark.parametrize("quorum", ["--standalone", "--no-initial-controllers"])
def test_both_describe_a_directory_in_the_same_words(quorum: str, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=127.0.0.1:9093\n"
        "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={tmp_path / 'data'}\n"
    )
    assert told(config)[0] == 1
    for tool_, other in ((ours, theirs), (theirs, ours)):
        for path in sorted((tmp_path / "data").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        said = tool_("format", quorum, "-t", CLUSTER_ID, "-c", str(config)).ok().splitlines()[-1]
        assert said.endswith(f"{tmp_path / 'data'} with metadata.version 4.3-IV0.")
        assert "voter" not in said or quorum == "--standalone"
        assert told(config)[0] == 0
        assert other("format", quorum, "-t", CLUSTER_ID, "-c", str(config)).code == 1
        again = other("format", quorum, "-t", CLUSTER_ID, "-c", str(config), "--ignore-formatted")
        assert again.ok() == "All of the log directories are already formatted.\n"
    (tmp_path / "data" / "meta.properties").unlink()
    assert told(config)[0] == 1


@pytest.mark.parametrize(
    ("credential", "is_right"),
    [
        ("SCRAM-SHA-256=[name=ann,password=hush=,salt=c2FsdA==]", True),
        ('SCRAM-SHA-512=[name="ann",password="hush hush",salt="c2FsdA==",iterations=16384]', True),
        ("SCRAM-SHA-512=[name=ann,saltedpassword=c2FsdA==,salt=c2FsdA==]", True),
        ("SCRAM-SHA-512=[name=ann,saltedpassword=c2FsdA==]", False),
        ("SCRAM-SHA-256=[name=ann]", False),
        ("SCRAM-SHA-256=[password=hush]", False),
        ("SCRAM-SHA-256=[name=ann,password=hush,iterations=4095]", False),
        ("SCRAM-SHA-256=[name=ann,password=hush,iterations=16385]", False),
        ("SCRAM-SHA-256=[name=ann,password=hush,salt=?]", False),
        ("SCRAM-SHA-256=[name=ann,password=hush,other=x]", False),
        ("SCRAM-SHA-1=[name=ann,password=hush]", False),
        ("scram-sha-256=[name=ann,password=hush]", False),
        ("hush", False),
    ],
)
def test_both_read_the_same_credentials(credential: str, is_right: bool, tmp_path: Path) -> None:
    found = []
    for tool_, name in ((ours, "ours"), (theirs, "theirs")):
        config = tmp_path / f"{name}.properties"
        config.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=127.0.0.1:9093\n"
            "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\ncontroller.listener.names=CONTROLLER\n"
            f"log.dirs={tmp_path / name}\n"
        )
        ran = tool_("format", "--standalone", "-t", CLUSTER_ID, "-c", str(config), "--add-scram", credential)
        assert (ran.code == 0) == is_right
        records = read_bootstrap(RealWorld(seed=1), str(tmp_path / name)) or []
        found.append([each for each in records if isinstance(each, UserScramCredentialRecord)])
    assert found[0] == found[1]
    assert len(found[0]) == is_right


def told(config: Path) -> tuple[int, str]:
    """The exit code and the output of both tools, which must be equal."""
    mine, kafkas = ours("info", "-c", str(config)), theirs("info", "-c", str(config))
    assert (mine.code, mine.out) == (kafkas.code, kafkas.out)
    return mine.code, mine.out
