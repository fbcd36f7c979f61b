"""Computes CRC-32C (Castagnoli), the checksum of record batches and producer snapshots."""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder

Checksum = Callable[[bytes | bytearray | memoryview], int]


def _load() -> Checksum:
    # The import of the package would read its version from its metadata, which takes tens of milliseconds at each
    # start. Only its extension module is needed.
    package = PathFinder.find_spec("crc32c")
    places = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec("_crc32c", list(places)) if places else None
    if spec is None or spec.loader is None:
        from crc32c import crc32c as by_package

        return by_package
    module = spec.loader.create_module(spec)
    assert module is not None, "an extension module is created by its own loader"
    spec.loader.exec_module(module)
    by_extension: Checksum = module.crc32c
    return by_extension


crc32c: Checksum = _load()
