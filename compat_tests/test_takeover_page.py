"""Runs the blocks of docs/moving-to-apache-kafka.md unchanged."""

from pathlib import Path

import pytest

from compat_tests import pages
from oracle.target import steady_port


@pytest.mark.full  # test_takeover.py makes the same move
def test_the_page_works(tmp_path: Path) -> None:
    ports = {"PORT": str(steady_port(120))}
    said = pages.run("moving-to-apache-kafka.md", tmp_path, ports, pages.kafka_servers())
    assert "Found metadata" in said
    assert "Found problem" not in said
