"""The digest of a long key. The module is not compiled, because the class is a subclass of bytes."""

from __future__ import annotations


class Digest(bytes):
    """The digest of a long key, which is stored in the offset map instead of the key."""

    __slots__ = ()
