"""`python -m kpybroker.cli.health [PATH]`: exits with 0 if the node in this container answers PATH with 200, else 1.

PATH is /readyz (clients are served) or /healthz (the process answers). The environment has the port.
"""

from __future__ import annotations

import http.client
import os
import sys

TIMEOUT_S = 5
PORT = "KAFKA_KPYBROKER_HTTP_PORT"


def main() -> int:
    """Send the request, and print the answer or what is wrong in one line."""
    path = sys.argv[1] if len(sys.argv) > 1 else "/readyz"
    port = os.environ.get(PORT, "8080")
    if not port.isdecimal():
        print(f"{PORT}={port} is not a port", file=sys.stderr)
        return 1
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read(2000).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        print(f"127.0.0.1:{port}{path}: {error}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    print(text or answer.status)
    return 0 if answer.status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(main())
