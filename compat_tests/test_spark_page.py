"""Tests of docs/spark.md: its blocks run unchanged, and there is a test for every option that it calls tested."""

import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from compat_tests.conftest import MakeTopic
from oracle.target import Target
from tests import pages

HERE = Path(__file__).resolve().parent
PAGE = (HERE.parent / "docs" / "spark.md").read_text()
ROWS = re.findall(r"^\| (.*?) \| (.*`test_.*) \|$", PAGE, re.MULTILINE)


def test_the_stream_runs(
    spark: SparkSession,
    target: Target,
    make_topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = make_topic(4)
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for value in "one", "two", "three":
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block
    monkeypatch.chdir(tmp_path)
    # the JVM has a working directory of its own
    code = block[1].replace("clicks.parquet", str(tmp_path / "clicks.parquet"))
    code = code.replace('"clicks"', repr(topic)).replace("127.0.0.1:9092", target.bootstrap)
    exec(compile(code.replace("clicks-checkpoint", str(tmp_path / "checkpoint")), "docs/spark.md", "exec"), {})
    shown = capsys.readouterr().out
    assert all(f"| {value:>5}|" in shown or f"|{value:>5}|" in shown for value in ("one", "two", "three")), shown


@pytest.mark.parametrize(("what", "where"), ROWS)
def test_options_called_tested_are_tested(what: str, where: str) -> None:
    files = [HERE / name for name in re.findall(r"`(test_\w+\.py)`", where)]
    texts = "".join(file.read_text() for file in files)
    assert all(option in texts for option in re.findall(r"`([\w.]+)`", what)), what


@pytest.mark.timeout(600)
@pytest.mark.full  # the stream and the examples have tests of their own
def test_the_page_works(tmp_path: Path, target_name: str) -> None:
    """Every block runs in order, as in a clone."""
    if target_name != "kpybroker":
        return  # it starts a broker of its own
    (tmp_path / "spark_examples").symlink_to(HERE.parent / "spark_examples")
    said = pages.run("docs/spark.md", tmp_path, wait_s=550)
    assert "three" in "".join(said)
    for block, printed in zip(pages.blocks_of("docs/spark.md"), said, strict=True):
        assert pages.is_shown(block.shown, printed), printed
