"""Starts every example as a user would: by its path, and with spark-submit. Also tests the error messages of an example
that cannot continue."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation

from compat_tests.spark_secured import (
    GROUP,
    MODULE,
    TOPIC,
    TRANSACTIONAL_ID,
    SecuredBroker,
    password_of,
    secured_broker,
)
from kpybroker.spark.prerequisites import spark_version
from oracle.target import Target, steady_port
from spark_examples import realtime_alerts
from spark_examples.running import cluster_options
from tests.certificates import sign

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted(file.stem.removeprefix("test_example_") for file in Path(__file__).parent.glob("test_example_*.py"))
EXAMPLES.remove("command_lines")
if spark_version() < realtime_alerts.OLDEST_SPARK:
    EXAMPLES.remove("realtime_alerts")

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def run(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    # as in an activated venv; the examples are not part of the installed package
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    here = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, *arguments], cwd=ROOT, env=here, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("example", EXAMPLES)
def test_by_its_path(target: Target, tmp_path: Path, example: str) -> None:
    command = [sys.executable, f"spark_examples/{example}.py"]
    ran = run(command, "--bootstrap", target.bootstrap, "--workdir", str(tmp_path / "new"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"output is in {tmp_path / 'new'}" in ran.stdout


@pytest.mark.parametrize("example", EXAMPLES)
def test_with_spark_submit(target: Target, tmp_path: Path, example: str) -> None:
    connector = run([sys.executable, "-m", "kpybroker.spark"]).stdout.split()
    submit = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
    assert submit is not None
    command = [submit, "--master", "local[2]", *connector, f"spark_examples/{example}.py"]
    ran = run(command, "--bootstrap", target.bootstrap, "--workdir", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"output is in {tmp_path}" in ran.stdout


@pytest.fixture(scope="module")
def secured(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(target_name, tmp_path_factory.mktemp("secured")) as broker:
        rights = [(TOPIC, "*", may) for may in (AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE)]
        rights += [(TOPIC, "flights-", AclOperation.DELETE)]
        broker.user("ann", *rights, (GROUP, "*", AclOperation.READ), (TRANSACTIONAL_ID, "*", AclOperation.WRITE))
        yield broker


def written_in(folder: Path) -> str:
    return "".join(file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("example", EXAMPLES)
def test_over_tls_with_a_login(secured: SecuredBroker, tmp_path: Path, example: str) -> None:
    """The examples run as a user who has the rights that docs/spark.md names, and no others."""
    command = [sys.executable, f"spark_examples/{example}.py", *cluster_options(secured.seen_by("ann"))]
    ran = run(command, "--workdir", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert password_of("ann") not in ran.stdout + ran.stderr + written_in(tmp_path)


def test_the_demo_over_tls_with_a_login(secured: SecuredBroker) -> None:
    ran = run([sys.executable, "-m", "spark_examples.flights_demo", *cluster_options(secured.seen_by("ann"))])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "336,776 flights went through." in ran.stdout


def test_no_secret_is_in_the_event_log(secured: SecuredBroker, tmp_path: Path) -> None:
    """The event log contains everything that Spark's UI shows. Without our redaction setting, Spark would show the
    key."""
    me = sign("me")
    key, chain = (text.strip().replace("\n", "\\n") for text in (me.key_pem(), me.chain_pem))
    own = {"ssl_keystore_type": "PEM", "ssl_keystore_key": key, "ssl_keystore_certificate_chain": chain}
    logged = {"enabled": "true", "compress": "false", "dir": str(tmp_path / "events")}
    (tmp_path / "events").mkdir()
    command = ["spark-submit", "--master", "local[2]", *run([sys.executable, "-m", "kpybroker.spark"]).stdout.split()]
    command += [word for name, value in logged.items() for word in ("--conf", f"spark.eventLog.{name}={value}")]
    command += ["spark_examples/orders_dlq.py", *cluster_options(secured.seen_by("ann", **own))]
    ran = run(command, "--workdir", str(tmp_path / "work"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = ran.stdout + ran.stderr + written_in(tmp_path)
    assert "kafka.ssl.keystore.key" in found
    for secret in (password_of("ann"), key.split("\\n")[1]):
        assert secret not in found


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sasl_jaas_config": f'{MODULE} required username="ann" password="guessed";'}, "the login of 'ann' with"),
        ({"security_protocol": "PLAINTEXT"}, "if its listener has TLS or logins, give --command-config"),
    ],
)
def test_a_user_who_is_not_let_in(secured: SecuredBroker, changes: dict[str, str], told: str) -> None:
    command = [sys.executable, "-m", "spark_examples.orders_dlq", *cluster_options(secured.seen_by("ann", **changes))]
    ran = run(command)
    assert ran.returncode == 1
    assert told in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert "guessed" not in ran.stderr


def test_a_broker_of_its_own(tmp_path: Path) -> None:
    ran = run([sys.executable, "-m", "spark_examples.cdc_upsert"], "--workdir", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_folder_that_holds_another_run(target: Target, tmp_path: Path) -> None:
    """The example does not change the checkpoint in the folder, and prints the reason in one line."""
    command = [sys.executable, "-m", "spark_examples.orders_dlq", "--bootstrap", target.bootstrap]
    assert run(command, "--workdir", str(tmp_path)).returncode == 0
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    again = run(command, "--workdir", str(tmp_path))
    assert again.returncode == 1
    assert f"the checkpoint {tmp_path / 'checkpoint'} is for orders-" in again.stderr.splitlines()[-1]
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_no_broker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spark_examples.orders_dlq", "--bootstrap", f"127.0.0.1:{steady_port()}"]
    ran = run(command, "--workdir", str(tmp_path))
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "no broker responds" in ran.stderr


def test_a_folder_that_cannot_be_made(target: Target, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "spark_examples.orders_dlq", "--bootstrap", target.bootstrap]
    ran = run(command, "--workdir", str(tmp_path / "file" / "folder"))
    assert ran.returncode == 1
    assert ran.stderr == f"--workdir {tmp_path / 'file' / 'folder'} cannot be created: Not a directory\n"


def test_a_port_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ran = run([sys.executable, "-m", "spark_examples.orders_dlq", "--bootstrap", address])
    assert ran.returncode == 1
    assert f"{address} does not respond within 5 s" in ran.stderr
    assert ran.stderr.count("\n") == 1
