"""Runs the blocks of docs/mixed-clusters.md unchanged."""

from pathlib import Path

import pytest

from compat_tests import pages
from oracle.target import steady_port


@pytest.mark.full  # test_mixed_cluster.py makes the same replacements
@pytest.mark.timeout(pages.LONG_S + 20)
def test_the_page_works(tmp_path: Path) -> None:
    ports = {"PORT": str(steady_port(13))}
    said = pages.run("mixed-clusters.md", tmp_path, ports, pages.kafka_servers(), pages.LONG_S)
    assert "nothing prevents" in said
    assert said.count("3 brokers up") == 2 + 2 * 3, "after every replacement"
