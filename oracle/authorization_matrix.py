"""What each API tells a user who lacks one operation: recorded on Apache Kafka, and compared with kpybroker.

`python -m oracle.authorization_matrix` records tests/security/authorization-4.3.1.json, with the answers that differ
from that to a user who lacks nothing.
"""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oracle.authorization import CASES, LISTENER, NOTHING, OF_CONTROLLERS, SETTINGS, Case, Play, Ports
from oracle.authorization_at_controllers import at_controllers
from oracle.authorization_shares import SHARES
from oracle.authorization_versions import VERSIONS
from oracle.target import steady_port

RECORDED = Path(__file__).resolve().parent.parent / "tests/security/authorization-4.3.1.json"
MATRIX = (*CASES, *VERSIONS, *at_controllers((*CASES, *VERSIONS)), *SHARES)
"""Every request that is recorded; those that create a topic or a group that others would see are the last."""


def some_ports() -> Ports:
    """Free ones."""
    return Ports(*(steady_port() for _ in Ports._fields))


def properties(ports: Ports) -> dict[str, str]:
    """Of a node that is broker and controller, for either kind of broker."""
    shown = f"PLAINTEXT://127.0.0.1:{ports.broker},{LISTENER}://127.0.0.1:{ports.named}"
    steering = f"CONTROLLER://127.0.0.1:{ports.controller},{OF_CONTROLLERS}://127.0.0.1:{ports.steering}"
    return {**SETTINGS, "listeners": f"{shown},{steering}", "advertised.listeners": shown}


def play(ports: Ports, cases: Iterable[Case] = MATRIX) -> dict[str, dict[str, Any]]:
    """Send the requests; by case and by what is denied, what the user is told, if it is not that of NOTHING."""
    return compact(asyncio.run(Play(ports, cases).answers()))


def compact(answered: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Without what is told as if nothing was denied, and as JSON has it."""
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
