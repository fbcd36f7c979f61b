"""Records golden vectors: Apache Kafka's answers to fixed requests in the first, first flexible and last version.

`python -m oracle.record` writes tests/golden/<api>.json, each a list of {version, request, response, note}. Request and
response are the messages without headers, in hexadecimal. Topic ids, member ids and ports differ in each recording, so
record all files at once.
"""

import itertools
import json
import socket
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

from kpybroker.wire.api import by_name
from kpybroker.wire.codec.codec import build, parse
from oracle.cluster_scenes import ClusterScenes
from oracle.directory_scenes import DirectoryScenes
from oracle.group_scenes import SETTINGS, GroupScenes
from oracle.kafka import Kafka
from oracle.marker_scenes import MarkerScenes
from oracle.quorum_scenes import QuorumScenes
from oracle.quota_scenes import QuotaScenes
from oracle.scenes import Scenes
from oracle.security_scenes import SecurityScenes
from oracle.transaction_scenes import TransactionScenes
from oracle.txn_offset_scenes import TxnOffsetScenes
from oracle.voter_scenes import VoterScenes

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
API_VERSIONS = 18


class Recorder:
    """One connection, and the recorded exchanges on it."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = socket.create_connection((host, port), timeout=30)
        self._numbers = itertools.count(1)
        self.said: dict[str, list[dict[str, object]]] = defaultdict(list)

    def ask(self, name: str, version: int, request: Any, note: str = "") -> Any:
        """Send a request and return the parsed response. With a note, the exchange is recorded."""
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
            self.said[api.module].append(
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

    def write(self, directory: Path, *, append: bool = False) -> None:
        """Write one file for each API. With `append`, add to what other scenes have recorded."""
        directory.mkdir(parents=True, exist_ok=True)
        for module, said in self.said.items():
            file = directory / f"{module}.json"
            before = json.loads(file.read_text()) if append and file.exists() else []
            lines = ",\n".join(json.dumps(exchange) for exchange in [*before, *said])
            file.write_text(f"[\n{lines}\n]\n")


def main() -> None:
    """Start Apache Kafka, run all scenes, write the vectors."""
    with Kafka(properties={"offsets.topic.num.partitions": "4"}) as kafka:
        recorder = _at(kafka, int(kafka.bootstrap.rpartition(":")[2]))
        Scenes(recorder.ask).all()
        MarkerScenes(recorder.ask).all()
        TransactionScenes(recorder.ask).all()
        TxnOffsetScenes(recorder.ask).all()
        recorder.write(GOLDEN)
    with Kafka() as kafka:
        recorder, at_controller = _at(kafka, int(kafka.bootstrap.rpartition(":")[2])), _at(kafka, kafka.controller_port)
        ClusterScenes(recorder.ask, at_controller.ask).all()
        QuotaScenes(recorder.ask).all()
        SecurityScenes(recorder.ask).all()
        at_controller.said["api_versions_at_controller"] = at_controller.said.pop("api_versions")
        recorder.write(GOLDEN)
        at_controller.write(GOLDEN)
    with Kafka() as kafka:
        recorder, at_controller = _at(kafka, int(kafka.bootstrap.rpartition(":")[2])), _at(kafka, kafka.controller_port)
        DirectoryScenes(recorder.ask, at_controller.ask).all()
        del at_controller.said["api_versions"]
        recorder.write(GOLDEN)
        at_controller.write(GOLDEN)
    with Kafka() as kafka:
        recorder, at_controller = _at(kafka, int(kafka.bootstrap.rpartition(":")[2])), _at(kafka, kafka.controller_port)
        QuorumScenes(recorder.ask, at_controller.ask).all()
        VoterScenes(recorder.ask, at_controller.ask).all()
        recorder.write(GOLDEN)
        at_controller.write(GOLDEN)
    for name in ("consumer_group_heartbeat", "consumer_group_describe"):
        (GOLDEN / f"{name}.json").unlink(missing_ok=True)
    with Kafka(properties=SETTINGS) as kafka:
        recorder = _at(kafka, int(kafka.bootstrap.rpartition(":")[2]))
        GroupScenes(recorder.ask).all()
        recorder.write(GOLDEN, append=True)
    print(f"recorded in {GOLDEN}")


def _at(kafka: Kafka, port: int) -> Recorder:
    return Recorder(kafka.bootstrap.rpartition(":")[0], port)


if __name__ == "__main__":
    main()
