"""`kpybroker dev --control`: brokers for tests in any language, which are controlled over HTTP."""

from __future__ import annotations

import json
import signal
import sys
import threading
from argparse import Namespace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from kpybroker.cli.serving import parse_settings
from kpybroker.client.client import CommandFailed
from kpybroker.errors import ConfigError, KafkaError
from kpybroker.testing.cluster import Cluster
from kpybroker.testing.http_calls import ROUTES, Control, turn
from kpybroker.testing.http_routes import HttpError
from kpybroker.testing.node import BrokerStartError

HOST = "127.0.0.1"
BODY_BYTES_MAX = 1 << 20
CONNECTIONS_MAX = 64
IDLE_S = 30.0
ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
OWN_NAMES = ("127.0.0.1", "localhost", "::1")
PAGE = "/"
OPENAPI = "/openapi.json"


class ControlServer(ThreadingHTTPServer):
    """Serves the calls of one Control, each connection in a thread, at most CONNECTIONS_MAX at a time."""

    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"

    def __init__(self, control: Control, port: int) -> None:
        """Listen on a port of 127.0.0.1; 0 picks a free one. Raises OSError."""
        super().__init__((HOST, port), ControlHandler)
        self.control = control
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):  # a client that has gone is no error
            super().handle_error(request, client_address)


class ControlHandler(BaseHTTPRequestHandler):
    """One request."""

    server: ControlServer
    timeout = IDLE_S
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # the name in the library
        """Requests are not logged."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.close_connection = True
        try:
            body = self._body()
            if self.command == "GET" and urlsplit(self.path).path == PAGE:
                self._send(200, ROUTES.page().encode(), "text/html; charset=utf-8")
                return
            if self.command == "GET" and urlsplit(self.path).path == OPENAPI:
                told: Any = ROUTES.openapi()
            else:
                route, arguments = ROUTES.find(self.command, self.path, body)
                with turn(self.server.control, route.call):
                    told = route.call(self.server.control, **arguments)
            status = 200
        except HttpError as error:
            status, told = error.status, {"error": str(error)}
        except (ValueError, TypeError) as error:
            status, told = 400, {"error": str(error)}
        except (KafkaError, CommandFailed, BrokerStartError, AssertionError, RuntimeError, OSError) as error:
            notes = getattr(error, "__notes__", [])
            status, told = 409, {"error": "; ".join([str(error) or repr(error), *notes])}
        self._send(status, json.dumps({} if told is None else told).encode() + b"\n", "application/json")

    def _body(self) -> bytes:
        """The body of the request. Raises HttpError for what may come from another site's page, and for a body that is
        too large or has no length."""
        for name in ("Host", "Origin"):
            given = self.headers.get(name)
            if given is not None and urlsplit(given if "//" in given else f"//{given}").hostname not in OWN_NAMES:
                raise HttpError(403, f"the request has the {name} {given!r}; use http://localhost:PORT")
        if self.headers.get("Transfer-Encoding") is not None:
            raise HttpError(411, "send the body with a Content-Length")
        length = self.headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdigit():
            raise HttpError(400, f"Content-Length {length!r} is not a number")
        if int(length) > BODY_BYTES_MAX:
            raise HttpError(413, f"a body of {length} bytes; at most {BODY_BYTES_MAX}")
        return self.rfile.read(int(length))

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)


def run(given: Namespace) -> None:
    """Start the brokers, print the ready line, and serve calls until SIGTERM or Ctrl-C. Raises ConfigError."""
    try:
        cluster = Cluster(given.brokers, parse_settings(given.settings), secure=given.secure, port=given.port)
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from None
    for number in ENDING:
        signal.signal(number, _interrupt)
    try:
        server = ControlServer(Control(cluster), given.control_port)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {HOST}:{given.control_port}: {error.strerror}; choose another --control-port, or 0"
        ) from error
    ready_file: Path | None = given.ready_file
    try:
        with server, cluster:
            facts = {"bootstrap": cluster.bootstrap, "control": server.url}
            if cluster.client_properties is not None:
                facts["client"] = str(cluster.client_properties)
            if ready_file is not None:
                ready_file.write_text(json.dumps(facts))
            print("kpybroker ready", *(f"{name}={value}" for name, value in facts.items()), flush=True)
            server.serve_forever()
    except BrokerStartError as error:
        raise ConfigError(str(error)) from None
    except KeyboardInterrupt:
        pass
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """End the program as Ctrl-C does; what comes after this is ignored while the brokers are killed."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
