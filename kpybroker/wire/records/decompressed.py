"""The parts that all codecs share when they decompress in pieces: the size of the pieces, and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kpybroker.errors import ErrorCode, KafkaError

PIECE_BYTES = 64 << 10
"""The largest piece."""
IN_PLACE_BYTES = 1 << 20
"""The largest part that is decompressed where it is needed; a Load decompresses larger ones."""
STEPS_A_PIECE = 250
"""How many blocks or members are processed for one piece: they may be very small."""
Load = Callable[[], None]
"""Decompresses more than IN_PLACE_BYTES; call it, on any thread, before asking for the next piece. Raises KafkaError.
"""
Part = bytes | memoryview
Pieces = Iterator["Part | Load"]


def too_large(limit_bytes: int) -> KafkaError:
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"records decompress to more than {limit_bytes} bytes")


def corrupt(codec: str, cause: object) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{codec} data cannot be decompressed: {cause}")


def even(source: Iterable[Part | Load], limit_bytes: int) -> Pieces:
    """Pieces of at most PIECE_BYTES: larger ones are cut, small ones joined. A piece may be empty: a step that took
    time and produced nothing.

    Raises KafkaError: MESSAGE_TOO_LARGE for more than `limit_bytes` in all.
    """
    kept: list[Part] = []
    kept_bytes, left = 0, limit_bytes
    for piece in source:
        if not isinstance(piece, Part):
            yield piece
            continue
        kept.append(piece)
        size = len(piece)
        kept_bytes += size
        left -= size
        if left < 0:
            raise too_large(limit_bytes)
        if kept_bytes >= PIECE_BYTES or len(kept) >= STEPS_A_PIECE:
            yield from _cut(kept)
            kept, kept_bytes = [], 0
    if kept:
        yield from _cut(kept)


def _cut(kept: list[Part]) -> Iterator[bytes]:
    plain = kept[0] if len(kept) == 1 else b"".join(kept)
    if len(plain) <= PIECE_BYTES:
        yield bytes(plain)
        return
    for at in range(0, len(plain), PIECE_BYTES):
        yield bytes(plain[at : at + PIECE_BYTES])


def loaded(made: Callable[[], Part], bound_bytes: int) -> Pieces:
    """The result of `made`: computed at once, or by a Load if it may be more than IN_PLACE_BYTES."""
    if bound_bytes <= IN_PLACE_BYTES:
        yield made()
        return
    found: list[Part] = []
    yield lambda: found.append(made())
    yield found.pop()


def at_once(source: Iterable[Part | Load]) -> Iterator[Part]:
    """The pieces, with every Load called in place."""
    for piece in source:
        if isinstance(piece, Part):
            yield piece
        else:
            piece()
