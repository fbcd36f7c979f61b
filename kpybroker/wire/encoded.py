"""A response body that is already encoded. The module is not compiled, because the class is a subclass of bytes."""


class Encoded(bytes):
    """A response body that is already encoded for the call's version. It is sent unchanged."""

    __slots__ = ()
