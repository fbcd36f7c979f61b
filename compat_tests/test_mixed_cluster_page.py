"""Runs the blocks of docs/mixed-clusters.md unchanged."""

from pathlib import Path

import pytest

from compat_tests import pages
from oracle.jars import jars, java
from oracle.kafka import LOGGING
from oracle.target import steady_port


@pytest.mark.full  # test_mixed_cluster.py makes the same replacements
def test_the_page_works(tmp_path: Path) -> None:
    kafka = f'{java()} {pages.FLAGS} -Dlog4j2.configurationFile={LOGGING} -cp "{jars()}/*"'
    servers = {"kafka-server-start.sh": f"{kafka} kafka.Kafka", "kafka-storage.sh": f"{kafka} kafka.tools.StorageTool"}
    said = pages.run("mixed-clusters.md", tmp_path, {"PORT": str(steady_port(13))}, servers)
    assert "nothing prevents" in said
    assert said.count("3 brokers up") == 2 + 2 * 3, "after every replacement"
