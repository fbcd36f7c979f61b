"""Records golden vectors: Apache Kafka's responses to fixed requests, in the first, first flexible and last version.

`python -m oracle.record` writes tests/golden/<api>.json, each a list of {version, request, response, note}; request and
response are the messages without their headers, in hexadecimal. Topic ids, member ids and ports differ from one
recording to the next, so this rewrites every file. `--only DescribeProducers` performs only the plays that record this
API, and writes only its file.
"""

import argparse
import itertools
import json
import socket
import struct
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kpybroker.wire.api import API, Api, by_name
from kpybroker.wire.codec.codec import build, parse
from oracle.kafka import Kafka
from oracle.plays import Play, apis_named, file_of, plays_of

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
API_VERSIONS = 18

Exchange = dict[str, object]


class Recorder:
    """A connection to a broker or to a controller's listener. Exchanges with a note are stored in `said`, by file."""

    def __init__(self, host: str, port: int, said: dict[str, list[Exchange]], *, at_controller: bool = False) -> None:
        self._connection = socket.create_connection((host, port), timeout=30)
        self._numbers = itertools.count(1)
        self._said = said
        self._at_controller = at_controller

    def ask(self, name: str, version: int, request: Any, note: str = "") -> Any:
        """Send a request. Returns the response as an object. With a note, the exchange is recorded."""
        api = by_name[name]
        body = build(request, version)
        number = next(self._numbers)
        header = struct.pack(">hhih", api.key, version, number, 6) + b"golden"
        header += b"\0" if version >= api.flexible else b""
        self._connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        answer = self._receive()
        assert struct.unpack(">i", answer[:4]) == (number,)
        tagged = version >= api.flexible and api.key != API_VERSIONS
        assert not tagged or answer[4] == 0, "no tags are expected in a response header"
        answer = answer[5:] if tagged else answer[4:]
        if note:
            self._said[file_of(api, at_controller=self._at_controller)].append(
                {"version": version, "request": body.hex(), "response": answer.hex(), "note": note}
            )
        return parse(api.response, version, memoryview(answer))

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            piece = self._connection.recv(count - len(found))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            found += piece
        return found


def record(plays: Sequence[Play]) -> dict[str, list[Exchange]]:
    """Perform the plays on Apache Kafka. Returns the recorded exchanges, by file."""
    said: dict[str, list[Exchange]] = defaultdict(list)
    for play in plays:
        with Kafka(properties=play.properties) as kafka:
            host, _, port = kafka.bootstrap.rpartition(":")
            broker = Recorder(host, int(port), said)
            controller = Recorder(host, kafka.controller_port, said, at_controller=True)
            play.perform(broker.ask, controller.ask)
    return said


def write(said: Mapping[str, list[Exchange]], apis: Collection[Api], directory: Path) -> list[str]:
    """Write the files of these APIs, and leave all other files unchanged. Returns the names of the written files."""
    wanted = {file_of(api, at_controller=at_controller) for api in apis for at_controller in (False, True)}
    written = sorted(wanted & set(said))
    directory.mkdir(parents=True, exist_ok=True)
    for name in written:
        lines = ",\n".join(json.dumps(exchange) for exchange in said[name])
        (directory / f"{name}.json").write_text(f"[\n{lines}\n]\n")
    return written


def unrecorded(said: Mapping[str, list[Exchange]], apis: Collection[Api]) -> list[str]:
    """The APIs for which no scene has sent a request with a note."""
    return sorted(api.name for api in apis if file_of(api, at_controller=False) not in said)


def main(arguments: Sequence[str] | None = None) -> None:
    """Start Apache Kafka, play the scenes, and write the vectors."""
    parser = argparse.ArgumentParser(
        prog="python -m oracle.record",
        description="Record golden vectors of Apache Kafka in tests/golden: of all APIs, or of some.",
        epilog="Needs Java 17 and Kafka's jars, which Maven fetches into .cache on the first use.",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="API",
        help="write the files of these APIs alone, and leave the others as they are: DescribeProducers",
    )
    only = parser.parse_args(arguments).only
    try:
        apis = list(API) if only is None else apis_named(only)
    except ValueError as unknown:
        parser.error(str(unknown))
    said = record(plays_of(apis))
    print(f"recorded in {GOLDEN}: {', '.join(write(said, apis, GOLDEN))}")
    if missing := unrecorded(said, apis):
        raise SystemExit(
            f"no scene sends a request with a note for {', '.join(missing)}: add one in oracle/*_scenes.py"
        )


if __name__ == "__main__":
    main()
