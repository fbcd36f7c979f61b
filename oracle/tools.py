"""Runs Kafka's command-line tools in one JVM, which starts in a second; then each command takes only milliseconds."""

import atexit
import json
import os
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from oracle.jars import CACHE, jars, java
from oracle.target import die_with_parent

HERE = Path(__file__).resolve().parent
MAINS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
WITHOUT_BROKER = {"kafka-dump-log", "kafka-storage"}
TIMEOUT_S = 120.0
SHOWN_LINES = 20


@dataclass(frozen=True, slots=True)
class Ran:
    """The output of a tool, and its exit code."""

    code: int
    out: str
    err: str

    def ok(self) -> str:
        """The tool's stdout. Raises AssertionError, with all output, if the tool failed."""
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self.out


class Tools:
    """The JVM with the launcher. Commands of several threads run one at a time.

    heap: DumpLogSegments holds a record of 10 MB several times, as text.
    """

    def __init__(self, heap: str = "1g") -> None:
        classes = compiled(HERE / "Launcher.java")
        flags = [f"-Xmx{heap}", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:+UseSerialGC"]
        # Without these, tools catch an OutOfMemoryError, or wait for a thread that it has ended.
        flags += ["-XX:+ExitOnOutOfMemoryError", "-XX:+DisplayVMOutputToStderr"]
        flags += [f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}", "-Dkpybroker.log.level=error"]
        self._turn = threading.Lock()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - as long-lived as the JVM
        self._process = subprocess.Popen(
            [java(), *flags, "-cp", f"{classes}:{jars()}/*", "Launcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            preexec_fn=die_with_parent,
        )
        atexit.register(self._process.kill)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, main: str, args: list[str], stdin: str, timeout_s: float) -> Ran:
        """Run one main class. Raises TimeoutError, after killing the JVM, if it does not end in time, and
        ChildProcessError, with the end of the JVM's stderr, if it ends the JVM, for example for lack of heap."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            watch = threading.Timer(timeout_s, self._process.kill)
            watch.start()
            try:
                self._process.stdin.write(json.dumps({"main": main, "args": args, "stdin": stdin}).encode() + b"\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except BrokenPipeError:
                line = b""
            finally:
                watch.cancel()
        if not line:
            code = self._process.wait()
            self._stderr.seek(0)
            end = "\n".join(self._stderr.read().decode(errors="replace").splitlines()[-SHOWN_LINES:])
            if code == -signal.SIGKILL:
                raise TimeoutError(f"{main} {args} was killed after {timeout_s:.0f} s\n{end}")
            raise ChildProcessError(f"{main} {args} ended the tools' JVM with exit code {code}\n{end}")
        said = json.loads(line)
        return Ran(code=said["code"], out=said["out"], err=said["err"])


def compiled(source: Path, libraries: Path | None = None) -> Path:
    """The folder with the classes of a Java file that uses Kafka's jars, or the jars of another folder.

    Compiles the file if it is newer than the classes.
    """
    classes = CACHE / source.stem.lower()
    made = classes / f"{source.stem}.class"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        classes.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join(str(jar) for jar in sorted((libraries or jars()).glob("*.jar")))
        command = [java(), "-Xmx256m", "-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", path]
        subprocess.run([*command, "-d", str(classes), str(source)], check=True)
    return classes


@cache
def _tools() -> list[Tools]:
    return []


def tool(name: str, *args: str, bootstrap: str = "", stdin: str = "", timeout_s: float = TIMEOUT_S) -> Ran:
    """Run one of Kafka's tools by its usual name. Adds `--bootstrap-server` if `bootstrap` is given."""
    shared = _tools()
    if not shared or not shared[-1].alive:
        shared.append(Tools())
    server = ["--bootstrap-server", bootstrap] if bootstrap and name not in WITHOUT_BROKER else []
    return shared[-1].run(MAINS[name], [*server, *args], stdin, timeout_s)


def alone(name: str, *args: str, bootstrap: str, timeout_s: float = TIMEOUT_S) -> Ran:
    """Run a tool in its own JVM, such as kafka-verifiable-producer, which finishes only when its JVM ends."""
    flags = [
        "-Xmx128m",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}",
    ]
    command = [java(), *flags, "-Dkpybroker.log.level=error", "-cp", f"{jars()}/*", MAINS[name]]
    command += ["--bootstrap-server", bootstrap, *args]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    return Ran(code=ran.returncode, out=ran.stdout, err=ran.stderr)
