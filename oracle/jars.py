"""Finds Kafka's jars: Maven fetches them once into `.cache/kafka-4.3.1`, unless $KPYBROKER_KAFKA_LIBS names a
folder."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

KAFKA_VERSION = "4.3.1"
JAVA_MINIMUM = 17
HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache"
HOW_TO_GET = "apt-get install openjdk-17-jdk-headless maven (or brew install openjdk@17 maven)"


class MissingPrerequisite(SystemExit):
    """Software outside Python is missing; the text is one line with its name and how to install it.

    A SystemExit, so that a test run ends with this line and exit code 1, because a check that could not run has not
    passed.
    """


@cache
def java() -> str:
    """The path of a JDK of version 17 or later. Raises MissingPrerequisite if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    found = found or shutil.which("java")
    if found is None:
        raise MissingPrerequisite(f"Java {JAVA_MINIMUM} or later is missing: {HOW_TO_GET}")
    told = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', told)
    if match is None or int(match.group(1)) < JAVA_MINIMUM:
        raise MissingPrerequisite(f"{found} is not Java {JAVA_MINIMUM} or later: {HOW_TO_GET}")
    if "jdk.compiler" not in subprocess.run([found, "--list-modules"], capture_output=True, text=True).stdout:
        raise MissingPrerequisite(f"{found} is a runtime without the compiler, a JDK is needed: {HOW_TO_GET}")
    return found


def fetch(pom: Path, directory: Path) -> Path:
    """Fetch all jars that `pom` depends on into `directory`, with Maven, unless `directory` already contains them."""
    done = directory / ".complete"
    if done.exists():
        return directory
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingPrerequisite(f"Maven is missing (it fetches the jars of {pom.name}): {HOW_TO_GET}")
    directory.mkdir(parents=True, exist_ok=True)
    # In ~/.m2, Maven leaves POMs without jars, and Spark's Ivy takes such a folder for the whole artifact
    options = [f"-Dmaven.repo.local={CACHE / 'm2'}", f"-DoutputDirectory={directory}"]
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        complaint = next((line for line in run.stdout.splitlines() if "ERROR" in line), "no reason given")
        raise MissingPrerequisite(f"Maven could not fetch the jars of {pom}: {complaint}")
    done.touch()
    return directory


@cache
def jars() -> Path:
    """The folder with the jars of Kafka's broker and tools."""
    given = os.environ.get("KPYBROKER_KAFKA_LIBS")
    if given is None:
        return fetch(HERE / "pom.xml", CACHE / f"kafka-{KAFKA_VERSION}")
    if not list(Path(given).glob(f"kafka-clients-{KAFKA_VERSION}.jar")):
        raise MissingPrerequisite(f"KPYBROKER_KAFKA_LIBS={given} has no kafka-clients-{KAFKA_VERSION}.jar: unset it")
    return Path(given)


@cache
def pipelines() -> Path:
    """The folder with the jars of Kafka Streams, Connect and MirrorMaker 2, and of their Java client."""
    return fetch(HERE / "pipelines.xml", CACHE / f"pipelines-{KAFKA_VERSION}")


@cache
def s3a() -> Path:
    """The folder with Hadoop's S3A and the AWS SDK, for the Hadoop of PySpark 4.0.0."""
    return fetch(HERE / "s3a.xml", CACHE / "s3a")


@cache
def spark_connector() -> Path:
    """The folder with Spark's Kafka connector, for a PySpark newer than the one of `make test`."""
    return fetch(HERE / "spark.xml", CACHE / "spark-connector")


if __name__ == "__main__":
    print(spark_connector())
