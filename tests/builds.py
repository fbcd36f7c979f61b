"""Marks tests that need the interpreted build."""

from __future__ import annotations

import pytest

import kpybroker

replaces_code = pytest.mark.skipif(
    kpybroker.BUILD == "compiled", reason="it replaces functions of the broker, which compiled code calls directly"
)
"""For mutants: whether a law catches them does not depend on the build."""
