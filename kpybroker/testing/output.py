"""Reads the standard error of the nodes of a test cluster, for the reports of failed tests."""

from __future__ import annotations

from pathlib import Path

SHOWN_BYTES = 8000
"""The most bytes shown from the end of each node's output."""


class BrokerOutput:
    """The files `node-N.log` in a directory, one for each node."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def sizes(self) -> dict[str, int]:
        """Bytes written so far, by file name."""
        return {path.name: path.stat().st_size for path in self._files()}

    def since(self, sizes: dict[str, int], at_most: int = SHOWN_BYTES) -> str:
        """The output since `sizes` was taken, at most the last `at_most` bytes of each file; empty if there is none.

        If there are several nodes, the name of each file precedes its text.
        """
        files = self._files()
        texts = []
        for path in files:
            with path.open("rb") as file:
                end = file.seek(0, 2)
                file.seek(max(sizes.get(path.name, 0), end - at_most))
                text = file.read().decode(errors="replace").strip()
            if text:
                texts.append(text if len(files) == 1 else f"{path.name}:\n{text}")
        return "\n".join(texts)

    def _files(self) -> list[Path]:
        return sorted(self._directory.glob("node-*.log"))
