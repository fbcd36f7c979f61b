"""Records Apache Kafka's responses of each API to a user who lacks one operation, and compares kpybroker's with them.

`python -m oracle.authorization_matrix` records tests/security/authorization-4.3.1.json. The file contains only the
responses that differ from the response to a user who lacks no operation.
"""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oracle.authorization import CASES, LISTENER, NOTHING, OF_CONTROLLERS, SETTINGS, Case, Play, Ports
from oracle.authorization_at_controllers import at_controllers
from oracle.authorization_shares import SHARES
from oracle.authorization_streams import STREAMS
from oracle.authorization_versions import VERSIONS
from oracle.target import steady_port

RECORDED = Path(__file__).resolve().parent.parent / "tests/security/authorization-4.3.1.json"
MATRIX = (*CASES, *VERSIONS, *at_controllers((*CASES, *VERSIONS)), *SHARES, *STREAMS)
"""All recorded requests. Requests that create a topic or group which other requests would list are at the end."""


def some_ports() -> Ports:
    """Free ports."""
    return Ports(*(steady_port() for _ in Ports._fields))


def properties(ports: Ports) -> dict[str, str]:
    """The properties of a combined broker and controller, for kpybroker or Apache Kafka."""
    shown = f"PLAINTEXT://127.0.0.1:{ports.broker},{LISTENER}://127.0.0.1:{ports.named}"
    steering = f"CONTROLLER://127.0.0.1:{ports.controller},{OF_CONTROLLERS}://127.0.0.1:{ports.steering}"
    return {**SETTINGS, "listeners": f"{shown},{steering}", "advertised.listeners": shown}


def play(ports: Ports, cases: Iterable[Case] = MATRIX) -> dict[str, dict[str, Any]]:
    """Send the requests. Returns the responses by case and by the title of the denied operations, if they differ from
    the response with NOTHING denied."""
    return compact(asyncio.run(Play(ports, cases).answers()))


def compact(answered: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Leave out responses that are the same as without a DENY, and convert the other responses as JSON does."""
    plain: dict[str, dict[str, Any]] = json.loads(json.dumps(answered))
    return {
        title: {denied: told for denied, told in by.items() if denied == NOTHING or told != by[NOTHING]}
        for title, by in plain.items()
    }


def main() -> None:
    from oracle.kafka import Kafka

    ports = some_ports()
    kafka = Kafka(port=ports.broker, jvm=("-XX:TieredStopAtLevel=1",))
    kafka.controller_port = ports.controller
    kafka.properties |= properties(ports)
    with kafka:
        answered = play(ports)
    RECORDED.write_text(json.dumps(answered, indent=1, sort_keys=True) + "\n")
    print(f"{len(answered)} requests recorded")


if __name__ == "__main__":
    main()
