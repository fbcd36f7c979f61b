"""Runs the blocks of the runbook unchanged, on three brokers on this machine."""

from pathlib import Path

from compat_tests import pages
from oracle.target import steady_port


def test_the_runbook_works(tmp_path: Path, target_name: str) -> None:
    if target_name != "kpybroker":
        return  # it starts brokers of its own
    ports = {"PORT": 4, "HTTP": 5, "CLIENTS": 4, "CONTROLLERS": 4}
    said = pages.run("runbook.md", tmp_path, {name: str(steady_port(count)) for name, count in ports.items()})
    assert "nothing is being moved any more" in said
    assert "unregistered broker 4" in said
