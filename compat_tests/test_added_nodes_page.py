"""Runs the blocks of docs/added-nodes.md unchanged."""

from pathlib import Path

import pytest

from compat_tests import pages
from oracle.target import steady_port


@pytest.mark.full  # test_added_nodes.py makes the same moves
@pytest.mark.timeout(pages.LONG_S + 20)
def test_the_page_works(tmp_path: Path) -> None:
    ports = {"PORT": str(steady_port(12))}
    said = pages.run("added-nodes.md", tmp_path, ports, pages.kafka_servers(), pages.LONG_S)
    assert "nothing that was found prevents" in said
    assert "unknown   controller 9" in said
    assert said.count("nothing is being moved any more") == 2, "there and back"
    assert [f"unregistered broker {number}" in said for number in (1, 2, 3, 4)] == [True] * 4
