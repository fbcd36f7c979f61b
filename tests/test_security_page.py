"""Runs the blocks of docs/security.md unchanged, with three nodes on this machine instead of three hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle.target import steady_port
from tests import pages


@pytest.mark.slow
def test_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLIENTS", "CONTROLLERS", "BROKERS"):
        monkeypatch.setenv(name, str(steady_port(4)))
    said = pages.run("docs/security.md", tmp_path)
    for block, printed in zip(pages.blocks_of("docs/security.md"), said, strict=True):
        assert pages.is_shown(block.shown, printed), f"shown:\n{block.shown}\nprinted:\n{printed}"
    for line in ("secret-of", "Traceback"):
        assert not any(line in printed for printed in said)
