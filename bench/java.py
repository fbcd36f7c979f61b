"""The Java producer: kafka-producer-perf-test with records of 1 KiB and default settings except acks."""

import re
import subprocess

from bench.control import create_topic, delete_topic, end_offsets, fresh_name
from bench.measure import Better, Case, LoadError, Measure
from bench.target import Target
from oracle.jars import jars, java

RECORDS = 300_000
WARM_UP_RECORDS = 200_000
PARTITIONS = 4
_STEADY = re.compile(r"^\d+ steady state records sent, ([\d.]+) records/sec", re.MULTILINE)


class JavaProduce(Case):
    """The rate excludes the client's warm-up; CPU is per record and includes it."""

    family = "java"
    warm_up_slices = 2
    records = RECORDS
    warm_up_records = WARM_UP_RECORDS

    def __init__(self, name: str, label: str, acks: str, rate: tuple[float, float], cpu: tuple[float, float]) -> None:
        self.acks = acks
        self.name = name
        self.measures = (
            Measure(f"{name}.rate", label, "k/s", Better.HIGHER, *rate),
            Measure(f"{name}.cpu", "… broker CPU", "s/million", Better.LOWER, *cpu),
        )

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, PARTITIONS)
        cpu = target.cpu()
        told = self._run(target, topic)
        used = target.cpu() - cpu
        steady = _STEADY.search(told)
        sent = self.records + self.warm_up_records
        stored = sum(end_offsets(target, topic, PARTITIONS))
        delete_topic(target, topic)
        if steady is None or stored != sent:
            raise LoadError(f"{target.name} holds {stored} of {sent} records of the Java producer:\n{told[-2000:]}")
        rate, cost = self.measures
        return {rate.key: float(steady[1]) / 1e3, cost.key: used.per(sent / 1e6)}

    def _run(self, target: Target, topic: str) -> str:
        flags = ["-Xmx512m", "-Xms512m", "-Dlog4j2.level=error", "-cp", f"{jars()}/*"]
        load = ["--topic", topic, "--num-records", str(self.records + self.warm_up_records), "--record-size", "1024"]
        load += ["--warmup-records", str(self.warm_up_records), "--throughput", "-1"]
        load += ["--bootstrap-server", target.bootstrap, "--command-property", f"acks={self.acks}"]
        command = [java(), *flags, "org.apache.kafka.tools.ProducerPerformance", *load]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if ran.returncode != 0:
            raise LoadError(
                f"the Java producer failed against {target.name}:\n{ran.stdout[-1000:]}{ran.stderr[-2000:]}"
            )
        return ran.stdout


def cases() -> list[Case]:
    return [
        JavaProduce(f"java-produce-acks-{acks}", f"Java producer 1 KiB, acks={acks}", acks, (1.2, 1.4), (0.6, 0.4))
        for acks in ("1", "all")
    ]
