"""kpybroker in the place of each node of the recorded scenes says what Apache Kafka's node said.

Every request that Kafka's other nodes and the client sent is sent to a whole kpybroker node, whose responses must be
those of Kafka's node, and the node's own requests must be those of Kafka's node, field by field. FREEDOMS names the
fields that may differ, how, and why.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kpybroker.errors import ErrorCode
from tests.conversations.comparing import NEVER, ordered
from tests.conversations.replay import Difference, Replay
from tests.conversations.script import Script


class Freedom(NamedTuple):
    """A field that may differ. `what` matches the API, "request" or "response", and the path of the field."""

    what: str
    holds: Callable[[Replay, Difference], bool]
    why: str


def _request(difference: Difference) -> Any:
    return difference.said.asked


def _error(difference: Difference) -> int:
    """The error of the partition in Kafka's response; 0 if it has no partition."""
    rows = [row for topic in difference.said.told.responses for row in topic.partitions]
    return int(rows[0].error_code) if rows else 0


def _has_left(replay: Replay, difference: Difference) -> bool:
    """Whether each row says that another broker leads, and which one."""
    if difference.what.endswith("node_endpoints"):
        return all(node["node_id"] in replay.script.settings for node in difference.ours)
    rows = [row for topic in difference.ours for row in topic["partitions"]]
    return all(
        row["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER and row["current_leader"]["leader_id"] > 0 for row in rows
    )


def _is_our_log(replay: Replay, difference: Difference) -> bool:
    """Whether all the records are those of Kafka's log at these offsets, and there are not fewer, unless the response
    has none. The scene has no records from before the first snapshot that it fetches."""
    log = replay.log
    if 0 < len(difference.ours) < len(difference.kafka):
        return False
    known = [batch for batch in difference.ours if batch["base_offset"] >= min(log)]
    return all(log.get(batch["base_offset"]) == ordered(batch) for batch in known)


FREEDOMS = (
    # ---- the metadata log
    Freedom(
        r"Fetch request topics\[0\].partitions\[0\].(log_start_offset|partition_max_bytes)",
        lambda _, it: it.kafka in (-1, 0),
        "Kafka's replicas of the metadata log leave these fields unset, and no leader reads them",
    ),
    Freedom(
        r"Fetch request topics\[0\].partitions\[0\].high_watermark",
        lambda _, it: it.kafka == -1 or it.ours == 0,
        "an unknown high watermark is -1 at Kafka and 0 here; after a snapshot, kpybroker waits for the leader's",
    ),
    Freedom(
        r"Fetch request topics\[0\].partitions\[0\].fetch_offset",
        lambda replay, it: replay.has_stopped_sooner and it.ours < it.kafka,
        "kpybroker stops as soon as it may; Kafka's node fetches for a while longer",
    ),
    Freedom(
        r"Fetch response responses\[0\].partitions\[0\].high_watermark",
        lambda _, it: it.kafka - 2 <= it.ours < it.kafka,
        "a response with new records does not wait until they are on disk, and committed",
    ),
    Freedom(
        r"Fetch response responses\[0\].partitions\[0\].records",
        lambda replay, it: isinstance(it.ours, list) and _is_our_log(replay, it),
        "records may come one response sooner or later: kpybroker appends the bootstrap records at once, and does not "
        "write the records of Shifts",
    ),
    Freedom(
        r"Fetch response responses\[0\].partitions\[0\].snapshot_id|FetchSnapshot response .*",
        lambda _, it: it.ours is None or it.said.api.name == "FetchSnapshot",
        "a new replica gets the log from its start, if the leader has it, and not a snapshot",
    ),
    Freedom(
        r"Fetch response (responses\[0\].partitions\[0\].current_leader.leader_id|node_endpoints)",
        lambda _, it: it.ours in (-1, []) and _error(it) == ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "a leader that has resigned does not name itself any more",
    ),
    Freedom(
        r"Vote response topics\[0\].partitions\[0\].vote_granted",
        lambda _, it: it.ours and _request(it).topics[0].partitions[0].pre_vote,
        "a voter whose leader has resigned or closed its connection grants a pre-vote before its fetch times out",
    ),
    Freedom(
        r"EndQuorumEpoch request leader_endpoints",
        lambda _, it: it.kafka == [],
        "kpybroker also sends the address of the leader that resigns",
    ),
    Freedom(
        r"ApiVersions response finalized_features(_epoch)?",
        lambda _, it: it.ours == [] or isinstance(it.ours, int),
        "before it knows the metadata, Kafka's node names the lowest metadata.version; the epoch is that of the last "
        "change at Kafka, and of the whole metadata here",
    ),
    # ---- brokers and the active controller
    Freedom(
        r"BrokerHeartbeat request (want_fence|current_metadata_offset|cordoned_log_dirs)",
        lambda _, it: (it.kafka, it.ours) in ((True, False), (None, [])) or 0 < abs(it.ours - it.kafka) <= 2,
        "a broker of kpybroker may be unfenced as soon as it has the metadata; it reports its cordoned directories "
        "(KIP-1066) from the start; how far it has come depends on the time",
    ),
    Freedom(
        r"Envelope request client_host_address",
        lambda _, it: it.kafka == bytes((127, 0, 0, 1)),
        "the address of the scene's client",
    ),
    Freedom(
        r"InitProducerId response .*",
        lambda _, it: it.said.told.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        "Kafka's broker refuses until it has a block of ids; kpybroker waits for the block",
    ),
    Freedom(
        r"BrokerHeartbeat response (is_fenced|should_shut_down)",
        lambda _, it: it.ours and _request(it).want_shut_down,
        "kpybroker knows from the Fetches of the other brokers that they have applied the new leaders, and lets the "
        "broker go before their next heartbeats",
    ),
    # ---- partitions
    Freedom(
        r"Fetch response (responses|node_endpoints)",
        lambda replay, it: it.kafka == [] and _has_left(replay, it),
        "a Fetch that waits is told at once that the broker no longer leads; Kafka's next Fetch is told",
    ),
    Freedom(
        r"Fetch response responses\[0\].partitions\[0\].records",
        lambda _, it: it.ours == b"",
        "a follower is told of a new high watermark at once, and not with the next records",
    ),
    Freedom(
        r"Fetch response (responses\[0\].partitions\[0\].error_code|node_endpoints)",
        lambda _, it: _error(it) == ErrorCode.FENCED_LEADER_EPOCH and it.ours != ErrorCode.NONE,
        "a broker that no longer leads answers NOT_LEADER_OR_FOLLOWER before it looks at the epoch",
    ),
    Freedom(
        r"Fetch response session_id",
        lambda _, it: it.kafka == 0 and bool(_request(it).forgotten_topics_data),
        "a session without partitions stays open",
    ),
)


def nothing(script: Script, node: int) -> dict[int, int]:
    """Our node's log is Kafka's."""
    return {}


def own_registration(script: Script, node: int) -> dict[int, int]:
    """A controller of kpybroker registers itself only after another has (`broker/controller_registration.py`)."""
    found = [base for base, batch in script.log.items() if batch["records"][0].get("controller_id") == node]
    snapshots = [one.asked.topics[0].partitions[0] for one in script.exchanges if one.api.name == "FetchSnapshot"]
    first = min(found, default=0) or snapshots[0].snapshot_id.end_offset - 1
    return {first: first + 1}


def only_kafkas(script: Script, node: int) -> dict[int, int]:
    """In `brokers`, kpybroker does not write: the registration of the only controller, that a broker has no
    cordoned directories, and that a broker is fenced whose fence the log has already."""
    unwritten: dict[int, int] = {}
    fenced: dict[int, bool] = {}
    for base, batch in sorted(script.log.items()):
        record = batch["records"][0]
        name, broker = record.get("record"), record.get("broker_id", -1)
        is_fence = name == "BrokerRegistrationChangeRecord" and record["fenced"] == 1
        is_cordon = name == "BrokerRegistrationChangeRecord" and record["cordoned_log_dirs"] == []
        if name == "RegisterControllerRecord" or is_cordon or (is_fence and fenced.get(broker)):
            unwritten[base] = NEVER
        for each in batch["records"]:
            if each.get("record") == "RegisterBrokerRecord":
                fenced[each["broker_id"]] = False
            elif each.get("record") == "BrokerRegistrationChangeRecord" and each["fenced"]:
                fenced[each["broker_id"]] = each["fenced"] == 1
    return unwritten


class Seat(NamedTuple):
    """kpybroker in the place of a node. `moved` and `follows`: see `Replay`. `unsent`: what Kafka's node said and ours
    does not say, after the first node has stopped or was killed."""

    scene: str
    node: int
    moved: Callable[[Script, int], dict[int, int]] = nothing
    follows: bool = True
    unsent: tuple[str, ...] = ()
    last: str = ""
    """The deed after which the replay ends: "stop 2"."""


SEATS = (
    Seat("quorum", 101, own_registration, follows=False),
    # a leader of Kafka that was killed resigns when it starts again; kpybroker starts as a follower
    Seat("quorum", 102, unsent=("EndQuorumEpoch of 102 to 103", "EndQuorumEpoch of 102 to 101")),
    Seat("quorum", 103),
    Seat("voters", 101, own_registration),
    Seat("voters", 102),
    Seat("voters", 103),
    # the last live broker stops without a controlled shutdown
    Seat("brokers", 1, unsent=("Fetch of 1 to 101", "Fetch of 1 to 2", "BrokerHeartbeat of 1 to 101")),
    Seat("brokers", 2, unsent=("Fetch of 2 to 1", "Fetch of 2 to 101")),
    # of a broker that leads nothing, Kafka's controller lets go at once; ours waits until the others know
    Seat("brokers", 101, only_kafkas, last="stop 2"),
)


@pytest.mark.parametrize("seat", SEATS, ids=lambda seat: f"{seat.scene}-{seat.node}")
def test_kpybroker_says_what_kafka_said(seat: Seat) -> None:
    script = Script(seat.scene)
    last = next((deed.begun for deed in script.deeds if f"{deed.name} {deed.node}" == seat.last), None)
    replay = Replay(script, seat.node, seat.moved(script, seat.node), follows=seat.follows, last=last)
    report = replay.run()
    assert report.problems == []
    assert report.compared > 10
    assert [str(each) for each in report.differences if not _is_free(replay, each)] == []
    first_end = min(deed.begun for deed in script.deeds if deed.name != "start")
    unsent = [each for each in report.unsent if str(each).partition(" (")[0] not in seat.unsent]
    assert [str(each) for each in unsent] == []
    assert min((each.ended or 0 for each in report.unsent), default=first_end) >= first_end
    assert [each for each in report.unasked if not re.match(POLLS, each)] == []


@pytest.mark.parametrize(("scene", "node"), [("brokers", 1), ("brokers", 2), ("quorum", 103)])
def test_logs_have_the_bytes_of_kafkas(scene: str, node: int) -> None:
    script = Script(scene)
    replay = Replay(script, node, {})
    replay.run()
    followed = b"".join(bytes(batch.view) for _, batch in sorted(script.batches.items()))
    ours = replay.bytes_of("__cluster_metadata-0")
    assert len(ours) > len(followed) / 2
    assert followed.startswith(ours)
    if scene == "brokers":
        assert replay.bytes_of("t-0") == script.partition_bytes()


POLLS = r"Fetch of metadata|BrokerHeartbeat|Vote"
"""Requests that are repeated for as long as there is no response."""


def _is_free(replay: Replay, difference: Difference) -> bool:
    return any(re.fullmatch(one.what, difference.what) and one.holds(replay, difference) for one in FREEDOMS)
