"""Finds the Kafka connector for a Spark version, on Maven Central or in a folder of jars."""

import os
import re
import socket
from pathlib import Path

from kpybroker.errors import ConfigError

JARS_VARIABLE = "KPYBROKER_SPARK_JARS"
MAVEN_CENTRAL = ("repo1.maven.org", 443)
CONNECT_TIMEOUT_S = 1.5
SHIPPED_WITH_PYSPARK = [  # 50 MB of the connector's dependencies
    "com.google.code.findbugs:jsr305",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.lz4:lz4-java",
    "org.scala-lang.modules:scala-parallel-collections_2.13",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
]

Version = tuple[int, int, int]


def connector(version: Version) -> dict[str, str]:
    """The Spark settings that add the connector for a Spark version: a Maven coordinate, or the jars in a folder.

    KPYBROKER_SPARK_JARS names the folder. Raises ConfigError if it does not have all four jars, or has jars for another
    Scala version or a later Spark; jars for an earlier Spark with the same major version are accepted.
    """
    scala = "2.12" if version < (4, 0, 0) else "2.13"
    folder = os.environ.get(JARS_VARIABLE)
    if folder is None:
        number = ".".join(map(str, version))
        return {
            "spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{number}",
            "spark.jars.excludes": ",".join(SHIPPED_WITH_PYSPARK),
        }
    jars = sorted(Path(folder).glob("*.jar"))
    of_spark = [f"spark-sql-kafka-0-10_{scala}", f"spark-token-provider-kafka-0-10_{scala}"]
    for wanted in *of_spark, "kafka-clients", "commons-pool2":
        if not any(jar.name.startswith(f"{wanted}-") for jar in jars):
            raise ConfigError(f"{JARS_VARIABLE}={folder} has no {wanted} jar: put it there or unset the variable")
    for jar in jars:
        of = re.fullmatch(rf"(?:{'|'.join(map(re.escape, of_spark))})-(\d+)\.(\d+)\..*", jar.name)
        if of is not None and not (int(of[1]) == version[0] and int(of[2]) <= version[1]):
            raise ConfigError(
                f"{JARS_VARIABLE}={folder}: {jar.name} is for a different Spark version than the installed PySpark "
                f"{'.'.join(map(str, version))}: put the jars of that version there, or unset the variable"
            )
    return {"spark.jars": ",".join(map(str, jars))}


def require_obtainable(coordinate: str) -> None:
    """Raise ConfigError if a jar (group:artifact:version) is not in Ivy's cache and Maven Central is unreachable."""
    group, artifact, version = coordinate.split(":")
    # Spark 3.5 and Spark 4 have Ivy's cache in different places
    if any(Path.home().glob(f".ivy2*/jars/{group}_{artifact}-{version}.jar")):
        return
    try:
        socket.create_connection(MAVEN_CENTRAL, CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigError(
            f"Spark needs {coordinate}, but Maven Central cannot be reached ({error}): go online once, or name a "
            f"folder with the connector's jars in {JARS_VARIABLE}"
        ) from error
