"""The common command line of the examples."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from confluent_kafka import KafkaException
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kpybroker.client.client import CommandFailed
from kpybroker.errors import ConfigError
from kpybroker.spark import Cluster, explained
from kpybroker.spark.prerequisites import require_broker
from spark_examples.local_broker import local_broker


def command_line(main: Callable[[Cluster, Path], object], description: str | None) -> None:
    """Run `main(cluster, workdir)` and print its result. Without --bootstrap and --command-config, starts a broker."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_cluster_options(parser)
    parser.add_argument("--workdir", type=Path, help="a folder for checkpoints and results (default: a new one)")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit every `with` block, so that everything is cleaned up
    try:
        with ExitStack() as stack:
            workdir = folder_at(given.workdir) if given.workdir else Path(tempfile.mkdtemp(prefix="spark-example-"))
            cluster = cluster_in(given)
            if cluster:
                require_broker(cluster)
            else:
                data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-example-broker-")))
                cluster = stack.enter_context(local_broker(data, workdir / "broker.log"))
            stack.callback(_stop_session)  # before the broker, because Spark would log errors about a stopped broker
            print(main(cluster, workdir))
            print(f"output is in {workdir}")
    except (ConfigError, CommandFailed) as error:
        sys.exit(str(error))
    except KafkaException as error:
        sys.exit(f"the broker refused a request: {explained(error)}")
    except TimeoutError:
        sys.exit("the broker no longer answers")
    except (PySparkException, Py4JJavaError) as error:
        sys.exit(explained(error))
    except KeyboardInterrupt:
        sys.exit(130)


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bootstrap", help="the broker to use, host:port (default: start one)")
    parser.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="settings of a client for TLS and a login, as Kafka's tools take them",
    )


def cluster_in(given: argparse.Namespace) -> Cluster | None:
    """The cluster that the options name, or None. Raises ConfigError."""
    if given.bootstrap:
        return Cluster(given.bootstrap, given.command_config)
    return Cluster.in_file(given.command_config) if given.command_config else None


def cluster_options(cluster: Cluster) -> list[str]:
    """The options that name this cluster; secrets stay in its file."""
    of_file = ["--command-config", str(cluster.command_config)] if cluster.command_config else []
    return ["--bootstrap", cluster.bootstrap, *of_file]


def _stop_session() -> None:
    session = SparkSession.getActiveSession()
    if session is not None:
        with suppress(Py4JError):  # the JVM itself may have failed
            session.stop()


def folder_at(path: Path) -> Path:
    """The folder, created if missing. Raises ConfigError if it cannot be used."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--workdir {path} cannot be created: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"--workdir {path} is not writable")
    return path.resolve()
