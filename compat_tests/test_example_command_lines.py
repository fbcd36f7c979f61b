"""Every example as a user starts it: by its path, with spark-submit; and what it says where it cannot go on."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kpybroker.spark.prerequisites import spark_version
from oracle.target import Target, steady_port
from spark_examples import realtime_alerts

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted(file.stem.removeprefix("test_example_") for file in Path(__file__).parent.glob("test_example_*.py"))
EXAMPLES.remove("command_lines")
if spark_version() < realtime_alerts.OLDEST_SPARK:
    EXAMPLES.remove("realtime_alerts")

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def run(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    # as an activated venv has it; the examples are no part of what is installed
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


def test_a_broker_of_its_own(tmp_path: Path) -> None:
    ran = run([sys.executable, "-m", "spark_examples.cdc_upsert"], "--workdir", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_folder_that_holds_another_run(target: Target, tmp_path: Path) -> None:
    """Its checkpoint is not touched, and one line says why."""
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
    assert "no broker answers" in ran.stderr


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
    assert ran.stderr.splitlines()[-1] == f"{address} does not answer like a Kafka broker"
    assert "Traceback" not in ran.stderr
