"""Runs the blocks of the page about all cores of a machine."""

from pathlib import Path

from compat_tests import pages
from oracle.target import steady_port


def test_the_page_works(tmp_path: Path, target_name: str) -> None:
    if target_name != "kpybroker":
        return  # it starts brokers of its own
    ports = {"PORT": str(steady_port(4)), "HTTP": str(steady_port(9))}
    said = pages.run("cores.md", tmp_path, ports)
    assert 'kpybroker_node_up{node="2"} 1.0' in said
    assert "unregistered broker 2" in said
