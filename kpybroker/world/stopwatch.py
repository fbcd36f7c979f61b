"""A clock to measure with, never to decide by: it goes on while the loop does not, and is the same in every World."""

from __future__ import annotations

from time import perf_counter

__all__ = ["perf_counter"]
