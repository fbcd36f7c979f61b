"""Creates a SparkSession with Kafka's connector, set up for a laptop. Under spark-submit, its arguments apply instead.

Spark reads memory, jars and log destination only while its JVM starts, so a process has only one session, which is
created here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kpybroker.errors import ConfigError
from kpybroker.spark.cluster import Cluster
from kpybroker.spark.connector import JARS_VARIABLE, connector, require_obtainable
from kpybroker.spark.prerequisites import require_broker, require_java, require_listener, spark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_JVM = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Settings for jobs of about a minute, which end before the JVM's second compiler would save time."""
HIDDEN = {"spark.sql.redaction.options.regex": r"(?i)url|sasl\.jaas|ssl\.keystore\.key"}
"""Hides options in Spark's UI, event log and errors. By default, Spark hides passwords but not private keys."""
SOURCE_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


def session(
    cluster: Cluster | str,
    *,
    cores: int = 2,
    memory: str = "1g",
    master: str | None = None,
    log: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """This process's SparkSession, with the connector for the installed PySpark.

    `cluster` is only checked here, because Spark itself waits three minutes for a missing broker; reads and writes name
    it in their options (`Cluster.spark_options`). For an address ("host:port,host:port"), the check is only that a
    server listens there. The connector is downloaded from Maven Central, or taken from the folder of jars that
    KPYBROKER_SPARK_JARS names. Without `master`, Spark runs in this process on `cores` cores, with the driver's
    `memory`. `log` is a file for the output of Spark and its JVM to stderr; `settings` are added last. Under
    spark-submit, its arguments determine everything except `settings`. Raises ConfigError if PySpark, Java, the jars or
    the broker are missing, or if the broker refuses the login.
    """
    version = spark_version()
    require_java()
    if isinstance(cluster, Cluster):
        require_broker(cluster)
    else:
        require_listener(cluster)
    chosen = {"spark.sql.shuffle.partitions": str(cores), "spark.sql.session.timeZone": "UTC", **HIDDEN}
    if not _is_submitted():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        chosen |= connector(version) | {
            "spark.master": master or f"local[{cores}]",
            "spark.app.name": "kpybroker",
            "spark.driver.memory": memory,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        if chosen["spark.master"].startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    chosen |= settings or {}
    if "spark.jars.packages" in chosen and not _has_way_of_its_own(chosen):
        require_obtainable(chosen["spark.jars.packages"])
    with _stderr_to(log):
        return _started(chosen, log)


def _is_submitted() -> bool:
    """Whether spark-submit started this process, so that its JVM already runs with its jars."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _has_way_of_its_own(settings: Mapping[str, str]) -> bool:
    """Whether jars come from a repository other than Maven Central, or through a proxy."""
    jvm = settings.get("spark.driver.extraJavaOptions", "") + os.environ.get("JAVA_TOOL_OPTIONS", "")
    return "proxyHost" in jvm or not {"spark.jars.repositories", "spark.jars.ivySettings"}.isdisjoint(settings)


def _started(settings: Mapping[str, str], log: Path | None) -> SparkSession:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    except PySparkException as error:
        where = f"in {log}" if log else "above"
        raise ConfigError(
            f"Spark did not start; its output is {where}. If it says NOT FOUND of a jar in ~/.m2, Maven left only the "
            f"POM there: delete that version's folder. Without access to Maven Central, name a folder with the "
            f"connector's jars in {JARS_VARIABLE}"
        ) from error
    jvm = spark._jvm
    assert jvm is not None, "a session has its JVM"
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(SOURCE_CLASS)
    except Py4JJavaError as error:
        raise ConfigError(
            "this Spark was started without Kafka's connector: spark-submit $(python -m kpybroker.spark) ..."
        ) from error
    return spark


@contextlib.contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    """Redirect file descriptor 2 while the JVM starts, because the JVM inherits and keeps it. Restore it afterwards."""
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
