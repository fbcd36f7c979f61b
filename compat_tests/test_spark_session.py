"""What is missing for a Spark session is said in one line, before a JVM is started."""

from pathlib import Path

import pytest

from kpybroker.errors import ConfigError
from oracle.target import Target, free_port
from spark_examples.session import JARS_VARIABLE, connector, require_broker, require_java, session


def test_no_broker(target: Target) -> None:
    """One address that answers is enough."""
    absent = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=f"no broker answers at {absent}.*kpybroker dev"):
        session(absent)
    require_broker(f"{absent},{target.bootstrap}")


@pytest.mark.parametrize("address", ["", "9092", "127.0.0.1", "127.0.0.1:kafka"])
def test_not_an_address(address: str) -> None:
    with pytest.raises(ConfigError, match="not of the form host:port"):
        require_broker(address)


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"Java 17.*JAVA_HOME={tmp_path}.*apt"):
        require_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"Java 17.*on the PATH.*apt"):
        require_java()


def test_folder_of_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=f"{tmp_path} holds no spark-sql-kafka-0-10 jar"):
        connector()
    jars = [tmp_path / name for name in ("kafka-clients-3.9.0.jar", "spark-sql-kafka-0-10_2.13-4.0.0.jar")]
    for jar in jars:
        jar.touch()
    assert connector() == {"spark.jars": ",".join(map(str, jars))}


def test_connector_is_that_of_the_installed_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    for version, artifact in ("3.5.7", "2.12:3.5.7"), ("4.0.0", "2.13:4.0.0"), ("4.3.0", "2.13:4.3.0"):
        monkeypatch.setattr("pyspark.__version__", version)
        assert connector()["spark.jars.packages"] == f"org.apache.spark:spark-sql-kafka-0-10_{artifact}"
