"""Tests that missing requirements of a Spark session are reported in one line, before a JVM is started."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kpybroker.errors import ConfigError
from kpybroker.spark import JARS_VARIABLE, session
from kpybroker.spark.connector import connector, require_obtainable
from kpybroker.spark.prerequisites import require_java, require_listener, spark_version

JARS = [
    "commons-pool2-2.12.0.jar",
    "kafka-clients-3.9.0.jar",
    "spark-sql-kafka-0-10_2.13-4.0.0.jar",
    "spark-token-provider-kafka-0-10_2.13-4.0.0.jar",
]


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An executable named java in JAVA_HOME; each test chooses its release."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return home


def test_no_broker(java: Path, closed: str) -> None:
    with pytest.raises(ConfigError, match=f"no broker responds at {closed}.*kpybroker dev"):
        session(closed)


def test_one_address_that_answers_is_enough(listening: str, closed: str) -> None:
    require_listener(f"{closed},{listening}")


@pytest.mark.parametrize("address", ["", "9092", ":9092", "127.0.0.1", "127.0.0.1:kafka", "127.0.0.1:65536", "a:1,"])
def test_not_an_address(address: str) -> None:
    with pytest.raises(ConfigError, match="not of the form host:port"):
        require_listener(address)


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"Java 17.*JAVA_HOME={tmp_path}.*apt"):
        session("127.0.0.1:1")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"Java 17.*on the PATH.*apt"):
        require_java()


@pytest.mark.parametrize(
    ("version", "is_fit"), [("1.8.0_432", False), ("11.0.2", False), ("17.0.15", True), ("21", True)]
)
def test_an_older_java_is_reported(java: Path, version: str, is_fit: bool) -> None:
    (java / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    if is_fit:
        require_java()
        return
    with pytest.raises(ConfigError, match=rf"JAVA_HOME={java} is Java {'8' if '1.8' in version else '11'}: "):
        require_java()


def test_a_folder_has_all_four_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The jars of an earlier version of Spark are accepted."""
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    for jar in JARS:
        (tmp_path / jar).touch()
    assert connector((4, 3, 0)) == {"spark.jars": ",".join(str(tmp_path / jar) for jar in JARS)}
    with pytest.raises(ConfigError, match=f"{tmp_path} has no spark-sql-kafka-0-10_2.12 jar"):
        connector((3, 5, 7))
    for jar in JARS:
        (tmp_path / jar).unlink()
        with pytest.raises(ConfigError, match=f"{tmp_path} has no {jar.rpartition('-')[0]} jar"):
            connector((4, 0, 0))
        (tmp_path / jar).touch()


@pytest.mark.parametrize("version", [(3, 5, 7), (4, 0, 0), (5, 0, 0)])
def test_jars_of_another_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]) -> None:
    """With the jars of a later version of Spark, the job would fail in the middle."""
    scala = "2.12" if version < (4, 0, 0) else "2.13"
    for jar in JARS:
        (tmp_path / jar.replace("_2.13-4.0.0", f"_{scala}-4.2.0")).touch()
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=r"-4.2.0.jar is for a different Spark version than .* PySpark \d.\d.\d"):
        connector(version)


def test_no_such_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="absent has no"):
        connector((4, 0, 0))


@pytest.mark.parametrize(
    ("version", "artifact"), [((3, 5, 7), "2.12:3.5.7"), ((4, 0, 0), "2.13:4.0.0"), ((10, 1, 2), "2.13:10.1.2")]
)
def test_the_connector_is_of_that_spark(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], artifact: str
) -> None:
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    assert connector(version)["spark.jars.packages"] == f"org.apache.spark:spark-sql-kafka-0-10_{artifact}"


def test_jars_that_are_neither_local_nor_downloadable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("kpybroker.spark.connector.MAVEN_CENTRAL", ("127.0.0.1", int(closed.rpartition(":")[2])))
    with pytest.raises(ConfigError, match=f"a:b:1, .*Maven Central cannot be reached.*{JARS_VARIABLE}"):
        require_obtainable("a:b:1")
    cached = tmp_path / ".ivy2.5.2" / "jars" / "a_b-1.jar"
    cached.parent.mkdir(parents=True)
    cached.touch()
    require_obtainable("a:b:1")


@pytest.mark.parametrize(("version", "is_fit"), [("3.4.4", False), ("3.5.0", True), ("4.3.0.dev1", True), ("?", False)])
def test_an_older_spark_is_reported(monkeypatch: pytest.MonkeyPatch, version: str, is_fit: bool) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    if is_fit:
        assert spark_version() >= (3, 5, 0)
        return
    with pytest.raises(ConfigError, match=r"too old, 3\.5 is required: pip install"):
        session("127.0.0.1:1")


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ConfigError, match=r"pip install 'kpybroker\[spark\]'"):
        session("127.0.0.1:1")


@pytest.mark.slow
def test_arguments_for_spark_submit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kpybroker.spark"]
    for jar in JARS:
        (tmp_path / jar).touch()
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert told == ["--jars", ",".join(str(tmp_path / jar) for jar in JARS)]
    monkeypatch.delenv(JARS_VARIABLE)
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert told[0::2] == ["--packages", "--exclude-packages"]
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path / "absent"))
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
