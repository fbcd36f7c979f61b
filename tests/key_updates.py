"""A TLS 1.3 client that requests new keys again and again, which Python's own module cannot do (RFC 8446, 4.6.3)."""

from __future__ import annotations

import _ssl
import ctypes

UPDATE_REQUESTED = 1
LIBRARY = ctypes.CDLL(_ssl.__file__)  # loads the OpenSSL that Python's module is linked to


def _function(name: str, returns: type | None, *takes: type) -> ctypes._FuncPointer:  # type: ignore[name-defined]
    found = getattr(LIBRARY, name)
    found.restype, found.argtypes = returns, takes
    return found


_METHOD = _function("TLS_client_method", ctypes.c_void_p)
_CONTEXT = _function("SSL_CTX_new", ctypes.c_void_p, ctypes.c_void_p)
_NEW = _function("SSL_new", ctypes.c_void_p, ctypes.c_void_p)
_FREE = _function("SSL_free", None, ctypes.c_void_p)
_SET_SOCKET = _function("SSL_set_fd", ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_CONNECT = _function("SSL_connect", ctypes.c_int, ctypes.c_void_p)
_UPDATE = _function("SSL_key_update", ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_SEND = _function("SSL_do_handshake", ctypes.c_int, ctypes.c_void_p)


def updates_until_it_ends(handle: int, most: int) -> int:
    """Do the handshake over a blocking socket, then send updates. Returns the number of updates that the kernel
    accepted before the peer closed the connection."""
    session = _NEW(_CONTEXT(_METHOD()))
    try:
        _SET_SOCKET(session, handle)
        assert _CONNECT(session) == 1
        for done in range(most):
            if _UPDATE(session, UPDATE_REQUESTED) != 1 or _SEND(session) != 1:
                return done
        return most
    finally:
        _FREE(session)
