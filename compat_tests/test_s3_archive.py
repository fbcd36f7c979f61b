"""Tests of an archive in an S3 bucket: the same commands, on a local server with the S3 API."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from confluent_kafka import Producer
from moto.server import ThreadedMotoServer

from compat_tests.conftest import MakeTopic
from oracle.archiver import command
from oracle.jars import s3a
from oracle.target import Target

PARTITIONS = 2
BUCKET = "history"
REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The URL of a server without buckets."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def send(target: Target, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(count):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(30) == 0


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_bucket_is_a_folder_like_any_other(
    target: Target, endpoint: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, back = make_topic(PARTITIONS), make_topic(PARTITIONS)
    where = f"s3a://{BUCKET}/{topic}"
    bucket = boto3.resource(
        "s3", REGION, endpoint_url=endpoint, aws_access_key_id="test", aws_secret_access_key="test"
    ).Bucket(BUCKET)
    bucket.create()
    settings = {
        "spark.jars": ",".join(str(jar) for jar in sorted(s3a().glob("*.jar"))),
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]

    def run(*arguments: str, code: int = 0) -> Any:
        ended = subprocess.run(
            command(target.bootstrap, *arguments, *given, "--json"),
            env=os.environ | CREDENTIALS,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.returncode == code, ended.stderr
        return json.loads(ended.stdout) if code == 0 else ended.stderr

    for total in 100, 200:
        send(target, topic, 100)
        copied = run(topic, "--to", where)
        assert sum(row["records"] for row in copied) == 100
        found = run("verify", where)
        assert found["faults"] == []
        assert sum(row["compared"] for row in found["partitions"]) == total
    assert sum(row["sent"] for row in run("replay", where, topic, "--into", back)) == 200

    manifest = bucket.Object(f"{topic}/_archive/00000000000000000002.json")
    half = manifest.get()["Body"].read()[:200]
    manifest.put(Body=half)
    assert "incomplete" in run(topic, "--to", where, code=1)
    assert manifest.get()["Body"].read() == half
