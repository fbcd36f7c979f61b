"""Records the operations that random sets of ACLs allow a user on some topics on Apache Kafka, and compares kpybroker's
with them.

`python -m oracle.authorization_patterns` records tests/security/patterns-4.3.1.json: for each set, the authorized
operations on each topic. The sets are generated from a seed. They mix literal, prefixed and wildcard patterns, hosts,
DENY and ALLOW, and ACLs for the user, for all users and for other users.
"""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

from kpybroker.client.dialer import Dialer
from kpybroker.client.peer import Peer
from kpybroker.config.login import Login
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.wire.rpc import create_acls, delete_acls, describe_acls, describe_topic_partitions
from kpybroker.world.real import real_world
from oracle.authorization import ALLOW, DENY, LITERAL, PASSWORD, USER, Ports
from oracle.authorization_matrix import properties, some_ports

RECORDED = Path(__file__).resolve().parent.parent / "tests/security/patterns-4.3.1.json"
SETS, SEED, PREFIXED = 150, 17, 4
TOPICS = ("a", "ab", "abc", "b", "*")
NAMES = ("*", "a", "ab", "abc", "b", "c", "**")
PRINCIPALS = (f"User:{USER}", f"User:{USER}", "User:*", "User:other", f"user:{USER}", "User:", f"Group:{USER}")
HOSTS = ("*", "*", "127.0.0.1", "127.0.0.2", "127.0.0.0/8", "localhost", "::ffff:127.0.0.1")
OPERATIONS = (
    *(Operation.ALL, Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER),
    *(Operation.DESCRIBE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
)
EVERYTHING: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def some_acls(random: Random) -> list[create_acls.AclCreation]:
    """A few random ACLs. At most every third one is a DENY."""
    return [
        create_acls.AclCreation(
            resource_type=AclResource.TOPIC,
            resource_name=random.choice(NAMES),
            resource_pattern_type=random.choice((LITERAL, PREFIXED)),
            principal=random.choice(PRINCIPALS),
            host=random.choice(HOSTS),
            operation=random.choice(OPERATIONS),
            permission_type=random.choice((ALLOW, ALLOW, DENY)),
        )
        for _ in range(random.randint(1, 8))
    ]


async def _until_there(admin: Peer, count: int) -> None:
    while True:
        shown = await admin.ask("DescribeAcls", describe_acls.Request(**EVERYTHING))
        if sum(len(row.acls) for row in shown.resources) == count:
            return
        await asyncio.sleep(0.005)


async def _ask(ports: Ports) -> list[dict[str, int]]:
    network, random = real_world().network, Random(SEED)
    admin = await Dialer(network).meet("127.0.0.1", ports.broker, client_id="admin")
    bob = await Dialer(network, Login("PLAIN", USER, PASSWORD)).meet("127.0.0.1", ports.named, client_id="bob")
    topics = [describe_topic_partitions.TopicRequest(name=name) for name in TOPICS]
    wanted = describe_topic_partitions.Request(topics=topics, response_partition_limit=100)
    found = []
    try:
        for _ in range(SETS):
            acls = some_acls(random)
            made = await admin.ask("CreateAcls", create_acls.Request(creations=acls))
            assert not any(row.error_code for row in made.results), made
            await _until_there(admin, len({repr(acl) for acl in acls}))
            told = await bob.ask("DescribeTopicPartitions", wanted)
            found.append({row.name: row.topic_authorized_operations for row in told.topics})
            gone = [delete_acls.DeleteAclsFilter(**EVERYTHING)]
            await admin.ask("DeleteAcls", delete_acls.Request(filters=gone))
            await _until_there(admin, 0)
    finally:
        admin.close()
        bob.close()
    return found


def play(ports: Ports) -> list[dict[str, int]]:
    """For each set of ACLs, the operations that the user is authorized for, by topic."""
    return asyncio.run(_ask(ports))


def main() -> None:
    from oracle.kafka import Kafka

    ports = some_ports()
    kafka = Kafka(port=ports.broker, jvm=("-XX:TieredStopAtLevel=1",))
    kafka.controller_port = ports.controller
    kafka.properties |= properties(ports)
    with kafka:
        found = play(ports)
    RECORDED.write_text(json.dumps(found, sort_keys=True).replace("}, ", "},\n ") + "\n")
    print(f"{len(found)} sets recorded")


if __name__ == "__main__":
    main()
