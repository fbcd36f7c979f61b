"""`python -m kpybroker.cli.health [PATH]`: exits with 0 if the node in this container returns 200 for PATH, else 1.

PATH is /readyz (the node serves clients) or /healthz (the process responds). Environment variables give the port, and
say whether TLS and a token are needed.
"""

from __future__ import annotations

import http.client
import os
import sys
from pathlib import Path

TIMEOUT_S = 5
PORT = "KAFKA_KPYBROKER_HTTP_PORT"
TLS_LISTENER = "KAFKA_KPYBROKER_HTTP_TLS_LISTENER"
TOKEN_FILE = "KAFKA_KPYBROKER_HTTP_TOKEN_FILE"


def main() -> int:
    """Send the request, and print the response or the error in one line."""
    path = sys.argv[1] if len(sys.argv) > 1 else "/readyz"
    port = os.environ.get(PORT, "8080")
    if not port.isdecimal():
        print(f"{PORT}={port} is not a port", file=sys.stderr)
        return 1
    connection = _connection(int(port))
    try:
        connection.request("GET", path, headers=_headers())
        answer = connection.getresponse()
        text = answer.read(2000).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        print(f"127.0.0.1:{port}{path}: {error}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    print(text or answer.status)
    return 0 if answer.status == http.client.OK else 1


def _connection(port: int) -> http.client.HTTPConnection:
    if not os.environ.get(TLS_LISTENER):
        return http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the certificate is for other host names
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=context)


def _headers() -> dict[str, str]:
    """The header with the token, if a token is needed. Raises OSError if it cannot be read."""
    path = os.environ.get(TOKEN_FILE)
    return {"Authorization": f"Bearer {Path(path).read_text('ascii', 'replace').strip()}"} if path else {}


if __name__ == "__main__":
    sys.exit(main())
