"""Builds wheels with modules compiled by mypyc (docs/decisions/0025-a-compiled-build.md)."""
