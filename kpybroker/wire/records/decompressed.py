"""Common functions of all codecs for decompression in pieces: the size of the pieces, and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kpybroker.errors import ErrorCode, KafkaError

PIECE_BYTES = 256 << 10
"""The largest piece. A piece of this size takes a millisecond at most, and much longer than letting other tasks run."""
READ_BYTES = 64 << 10
"""The most bytes that one call of a decompressor returns, because it may hold the interpreter's lock."""
IN_PLACE_BYTES = 1 << 20
"""The largest part that is decompressed on the calling thread. A Load decompresses larger parts."""
STEPS_A_PIECE = 250
"""The most blocks or members that are processed for one piece, since they may be very small."""
Load = Callable[[], None]
"""Decompresses more than IN_PLACE_BYTES. Call it, on any thread, before the next piece is requested. Raises KafkaError.
"""
Part = bytes | memoryview
Pieces = Iterator["Part | Load"]


def too_large(limit_bytes: int) -> KafkaError:
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"records decompress to more than {limit_bytes} bytes")


def corrupt(codec: str, cause: object) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{codec} data cannot be decompressed: {cause}")


def even(source: Iterable[Part | Load], limit_bytes: int) -> Pieces:
    """Cut large pieces and join small ones, so that each has at most PIECE_BYTES. A piece may be empty, for a step that
    took time and produced nothing.

    Raises KafkaError: MESSAGE_TOO_LARGE if all pieces together have more than `limit_bytes`.
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


def _cut(kept: list[Part]) -> Iterator[Part]:
    plain = kept[0] if len(kept) == 1 else b"".join(kept)
    if len(plain) <= PIECE_BYTES:
        yield plain
        return
    view = memoryview(plain)
    for at in range(0, len(plain), PIECE_BYTES):
        yield view[at : at + PIECE_BYTES]


def loaded(made: Callable[[], Part], bound_bytes: int) -> Pieces:
    """Yield the result of `made`. If it may have more than IN_PLACE_BYTES, a Load computes it."""
    if bound_bytes <= IN_PLACE_BYTES:
        yield made()
        return
    found: list[Part] = []
    yield lambda: found.append(made())
    yield found.pop()


def at_once(source: Iterable[Part | Load]) -> Iterator[Part]:
    """Yield the pieces, and call each Load in place."""
    for piece in source:
        if isinstance(piece, Part):
            yield piece
        else:
            piece()
