"""One SparkSession with Kafka's connector, set up for a laptop.

Spark reads memory, jars and log destination only while its JVM starts, so a process has one session and makes it here.
"""

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kpybroker.errors import ConfigError

JARS_VARIABLE = "KPYBROKER_SPARK_JARS"
CONNECT_TIMEOUT_S = 2.0
QUICK_JVM = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Settings for a job of a minute or so: it is over before what the JVM's second compiler costs has paid."""
SHIPPED_WITH_PYSPARK = [  # the connector asks for these too, 50 MB of them
    "com.google.code.findbugs:jsr305",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.lz4:lz4-java",
    "org.scala-lang.modules:scala-parallel-collections_2.13",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
]


def session(
    bootstrap: str,
    *,
    cores: int = 2,
    memory: str = "1g",
    log: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Give this process's SparkSession, with the connector that fits the installed PySpark.

    `bootstrap` is only checked here (Spark itself waits three minutes for a broker that is not there); reads and writes
    name it in `kafka.bootstrap.servers`. The connector comes from Maven Central, or from the folder of jars that
    KPYBROKER_SPARK_JARS names. `log` is a file for what Spark and its JVM would print to stderr; `settings` are added
    last. Raises ConfigError when Java, the jars or the broker are missing.
    """
    require_java()
    require_broker(bootstrap)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    chosen = {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        **connector(),
        **(settings or {}),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("kpybroker").config(map=chosen)
    with _stderr_to(log):
        try:
            return builder.getOrCreate()
        except PySparkException as error:
            where = f"in {log}" if log else "above"
            raise ConfigError(
                f"Spark did not start; its own words are {where}. Without access to Maven Central, name a folder with "
                f"the connector's jars in {JARS_VARIABLE}"
            ) from error


def connector() -> dict[str, str]:
    """The setting that brings Kafka's connector to Spark: a folder of jars, else a Maven coordinate."""
    folder = os.environ.get(JARS_VARIABLE)
    if folder is None:
        scala = "2.12" if pyspark.__version__ < "4" else "2.13"
        return {
            "spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}",
            "spark.jars.excludes": ",".join(SHIPPED_WITH_PYSPARK),
        }
    jars = sorted(str(path) for path in Path(folder).glob("*.jar"))
    if not any("spark-sql-kafka-0-10" in jar for jar in jars):
        raise ConfigError(
            f"{JARS_VARIABLE}={folder} holds no spark-sql-kafka-0-10 jar: put the connector there or unset it"
        )
    return {"spark.jars": ",".join(jars)}


def require_java() -> None:
    """Raise ConfigError unless there is a Java that Spark will find."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which(str(Path(home, "bin", "java")) if home else "java") is None:
        place = f"under JAVA_HOME={home}" if home else "on the PATH"
        raise ConfigError(
            f"Spark needs Java 17, and there is none {place}: install it, e.g. apt install openjdk-17-jre-headless"
        )


def require_broker(bootstrap: str) -> None:
    """Raise ConfigError unless one address of `bootstrap` ("host:port,host:port") accepts a connection."""
    reasons = []
    for address in bootstrap.split(","):
        host, colon, port = address.strip().rpartition(":")
        if not (colon and port.isdigit()):
            raise ConfigError(f"bootstrap address {address!r} is not of the form host:port")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
            return
        except OSError as error:
            reasons.append(f"{address} ({error})")
    raise ConfigError(f"no broker answers at {', '.join(reasons)}: start one with `kpybroker dev`, or give its address")


@contextlib.contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    """The JVM inherits file descriptor 2 when it is started, and keeps it; ours is put back."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    ours = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
