"""The table of supported APIs: key, versions, first flexible version, audience, and the node that executes them.

ApiVersions, dispatch and docs/protocol.md are derived from this table. tests/test_table.py requires a message, a
handler, a test and golden vectors for every row.
"""

from __future__ import annotations

import importlib
import re
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

NEVER = 1 << 15
"""The value of `flexible` for an API without flexible versions."""
FEW = 1000
"""The most elements of a request about a few items, which is parsed and processed at once."""
MANY = 25_000
"""The most elements of a request about the partitions to which one client writes, or the members of one group."""
PARTITIONS = 100_000
"""The most elements of a request about as many partitions, topics or groups as a large cluster has."""


class Audience(Enum):
    """The senders of the requests."""

    CLIENT = "clients"
    BROKER = "brokers"


class RunsOn(Enum):
    """The node that executes the request. Any node accepts it."""

    ANY = "the node that receives it"
    CONTROLLER = "the active controller"


class Listens(Enum):
    """The listeners that accept the request, as in Kafka's schemas."""

    BROKER = frozenset({"broker"})
    CONTROLLER = frozenset({"controller"})
    BOTH = frozenset({"broker", "controller"})


class Api(NamedTuple):
    """One row. min and max are the supported versions; flexible is the first version with header v2 and tagged fields
    (KIP-482).

    advertise_from: the lowest version in ApiVersions, if it is not min; `note` has the reason.
    """

    key: int
    name: str
    min: int
    max: int
    flexible: int
    audience: Audience
    runs_on: RunsOn
    listens: Listens
    elements: int = FEW
    """The most elements of a request, in all its arrays together. If a request has more, its connection is closed. If
    the limit is above FEW, the handler works in turns (`long_work.py`) or in slices
    (tests/server/test_long_requests.py)."""
    error_rows: str = ""
    """The list in the response with elements that have the error codes, if the response itself has none. Used for APIs
    that run on the controller: such a request is repeated when another node becomes the controller."""
    advertise_from: int | None = None
    note: str = ""
    is_urgent: bool = False
    """Whether a request completes a Fetch that is parked before it on the same connection."""
    strict_from: int | None = None
    """The first version in which clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599), for requests to which the
    controller mutation quota applies."""
    brokers_from: int | None = None
    """For an API of clients: the first version that only brokers send."""
    carries_bytes: bool = False
    """Whether the requests contain records or another request. If so, they may be as large as socket.request.max.bytes,
    and their payload is not copied out of the frame."""

    @property
    def module(self) -> str:
        """The name of the API's files in wire/rpc, handlers and tests/handlers."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.name).lower()

    @property
    def request(self) -> Any:
        """The class of the requests. It is imported on first use."""
        return _messages(self).Request

    @property
    def response(self) -> Any:
        """The class of the responses. It is imported on first use."""
        return _messages(self).Response

    @property
    def is_forwarded(self) -> bool:
        """Whether every node accepts the request and forwards it to the active controller (KIP-590)."""
        return self.runs_on is RunsOn.CONTROLLER and self.listens is Listens.BOTH

    def has_error(self, response: Any, code: int) -> bool:
        """Whether a response, or any element of its `error_rows`, has this error code."""
        rows = getattr(response, self.error_rows) if self.error_rows else (response,)
        return any(row.error_code == code for row in rows)

    @property
    def advertised(self) -> tuple[int, int]:
        """The range of versions in ApiVersions responses."""
        return (self.min if self.advertise_from is None else self.advertise_from), self.max


@cache
def _messages(api: Api) -> Any:
    return importlib.import_module(f"kpybroker.wire.rpc.{api.module}")


CLIENT, BROKER = Audience
ANY, CONTROLLER = RunsOn
ON_BROKER, ON_CONTROLLER, ON_BOTH = Listens

# fmt: off
#        key  name                    versions  flexible  audience  runs on     listens
API = [
    Api(   0, "Produce",                  3, 13,    9,    CLIENT,   ANY,        ON_BROKER, elements=MANY,
          carries_bytes=True, advertise_from=0,
          note="advertised from 0 or librdkafka before 2.11 stops compressing (KAFKA-18659)"),
    Api(   1, "Fetch",                    4, 18,   12,    CLIENT,   ANY,        ON_BOTH, elements=PARTITIONS),
    Api(   2, "ListOffsets",              1, 11,    6,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS,
          is_urgent=True),
    Api(   3, "Metadata",                 0, 13,    9,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS,
          note="v0: no topics means all; from v1 null means all", is_urgent=True),
    Api(   8, "OffsetCommit",             2, 10,    8,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS,
          is_urgent=True),
    Api(   9, "OffsetFetch",              1, 10,    6,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS,
          is_urgent=True),
    Api(  10, "FindCoordinator",          0,  6,    3,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS,
          is_urgent=True),
    Api(  11, "JoinGroup",                0,  9,    6,    CLIENT,   ANY,        ON_BROKER, is_urgent=True),
    Api(  12, "Heartbeat",                0,  4,    4,    CLIENT,   ANY,        ON_BROKER, is_urgent=True),
    Api(  13, "LeaveGroup",               0,  5,    4,    CLIENT,   ANY,        ON_BROKER, elements=MANY,
          is_urgent=True),
    Api(  14, "SyncGroup",                0,  5,    4,    CLIENT,   ANY,        ON_BROKER, elements=MANY,
          is_urgent=True),
    Api(  15, "DescribeGroups",           0,  6,    5,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  16, "ListGroups",               0,  5,    3,    CLIENT,   ANY,        ON_BROKER),
    Api(  17, "SaslHandshake",            0,  1, NEVER,   CLIENT,   ANY,        ON_BOTH),
    Api(  18, "ApiVersions",              0,  4,    3,    CLIENT,   ANY,        ON_BOTH,
          note="the response header is always v0; the response to an unknown version is v0 (KIP-511)"),
    Api(  19, "CreateTopics",             2,  7,    5,    CLIENT,   CONTROLLER, ON_BOTH, elements=PARTITIONS,
          error_rows="topics", strict_from=6),
    Api(  20, "DeleteTopics",             1,  6,    4,    CLIENT,   CONTROLLER, ON_BOTH, elements=PARTITIONS,
          error_rows="responses", strict_from=5),
    Api(  21, "DeleteRecords",            0,  2,    2,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  22, "InitProducerId",           0,  5,    2,    CLIENT,   ANY,        ON_BROKER,
          note="v6 (KIP-939) is unstable in Kafka 4.3 and not advertised there either"),
    Api(  23, "OffsetForLeaderEpoch",     2,  4,    4,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS,
          is_urgent=True),
    Api(  24, "AddPartitionsToTxn",       0,  5,    3,    CLIENT,   ANY,        ON_BROKER, elements=MANY,
          brokers_from=4, note="from v4 on for brokers (KIP-890)"),
    Api(  25, "AddOffsetsToTxn",          0,  4,    3,    CLIENT,   ANY,        ON_BROKER),
    Api(  26, "EndTxn",                   0,  5,    3,    CLIENT,   ANY,        ON_BROKER),
    Api(  27, "WriteTxnMarkers",          1,  2,    1,    BROKER,   ANY,        ON_BROKER, elements=MANY),
    Api(  28, "TxnOffsetCommit",          0,  5,    3,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  29, "DescribeAcls",             1,  3,    2,    CLIENT,   ANY,        ON_BOTH),
    Api(  30, "CreateAcls",               1,  3,    2,    CLIENT,   CONTROLLER, ON_BOTH, elements=MANY,
          error_rows="results"),
    Api(  31, "DeleteAcls",               1,  3,    2,    CLIENT,   CONTROLLER, ON_BOTH,
          error_rows="filter_results"),
    Api(  32, "DescribeConfigs",          1,  4,    4,    CLIENT,   ANY,        ON_BOTH, elements=PARTITIONS),
    Api(  33, "AlterConfigs",             0,  2,    2,    CLIENT,   CONTROLLER, ON_BOTH, elements=PARTITIONS,
          error_rows="responses"),
    Api(  34, "AlterReplicaLogDirs",      1,  2,    2,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  35, "DescribeLogDirs",          1,  5,    2,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  36, "SaslAuthenticate",         0,  2,    2,    CLIENT,   ANY,        ON_BOTH),
    Api(  37, "CreatePartitions",         0,  3,    2,    CLIENT,   CONTROLLER, ON_BOTH, elements=PARTITIONS,
          error_rows="results", strict_from=3),
    Api(  38, "CreateDelegationToken",    1,  3,    2,    CLIENT,   CONTROLLER, ON_BOTH),
    Api(  39, "RenewDelegationToken",     1,  2,    2,    CLIENT,   CONTROLLER, ON_BOTH),
    Api(  40, "ExpireDelegationToken",    1,  2,    2,    CLIENT,   CONTROLLER, ON_BOTH),
    Api(  41, "DescribeDelegationToken",  1,  3,    2,    CLIENT,   ANY,        ON_BOTH),
    Api(  42, "DeleteGroups",             0,  2,    2,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  43, "ElectLeaders",             0,  2,    2,    CLIENT,   CONTROLLER, ON_BOTH, elements=PARTITIONS),
    Api(  44, "IncrementalAlterConfigs",  0,  1,    1,    CLIENT,   CONTROLLER, ON_BOTH, elements=PARTITIONS,
          error_rows="responses"),
    Api(  45, "AlterPartitionReassignments", 0, 1,  0,    CLIENT,   CONTROLLER, ON_BOTH, elements=PARTITIONS),
    Api(  46, "ListPartitionReassignments", 0, 0,   0,    CLIENT,   CONTROLLER, ON_BOTH, elements=PARTITIONS),
    Api(  47, "OffsetDelete",             0,  0, NEVER,   CLIENT,   ANY,        ON_BROKER, elements=MANY),
    Api(  48, "DescribeClientQuotas",     0,  1,    1,    CLIENT,   ANY,        ON_BROKER),
    Api(  49, "AlterClientQuotas",        0,  1,    1,    CLIENT,   CONTROLLER, ON_BOTH, elements=MANY,
          error_rows="entries"),
    Api(  50, "DescribeUserScramCredentials", 0, 0, 0,    CLIENT,   ANY,        ON_BOTH),
    Api(  51, "AlterUserScramCredentials", 0, 0,    0,    CLIENT,   CONTROLLER, ON_BOTH,
          error_rows="results"),
    Api(  52, "Vote",                     0,  2,    0,    BROKER,   ANY,        ON_CONTROLLER),
    Api(  53, "BeginQuorumEpoch",         0,  1,    1,    BROKER,   ANY,        ON_CONTROLLER),
    Api(  54, "EndQuorumEpoch",           0,  1,    1,    BROKER,   ANY,        ON_CONTROLLER),
    Api(  55, "DescribeQuorum",           0,  2,    0,    CLIENT,   CONTROLLER, ON_BOTH),
    Api(  56, "AlterPartition",           2,  3,    0,    BROKER,   CONTROLLER, ON_CONTROLLER, elements=PARTITIONS),
    Api(  57, "UpdateFeatures",           0,  2,    0,    CLIENT,   CONTROLLER, ON_BOTH),
    Api(  58, "Envelope",                 0,  0,    0,    BROKER,   ANY,        ON_CONTROLLER,
          carries_bytes=True),
    Api(  59, "FetchSnapshot",            0,  1,    0,    BROKER,   ANY,        ON_CONTROLLER),
    Api(  60, "DescribeCluster",          0,  2,    0,    CLIENT,   ANY,        ON_BOTH),
    Api(  61, "DescribeProducers",        0,  0,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  62, "BrokerRegistration",       0,  4,    0,    BROKER,   CONTROLLER, ON_CONTROLLER),
    Api(  63, "BrokerHeartbeat",          0,  2,    0,    BROKER,   CONTROLLER, ON_CONTROLLER),
    Api(  64, "UnregisterBroker",         0,  0,    0,    CLIENT,   CONTROLLER, ON_BOTH),
    Api(  65, "DescribeTransactions",     0,  0,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  66, "ListTransactions",         0,  2,    0,    CLIENT,   ANY,        ON_BROKER, elements=MANY),
    Api(  67, "AllocateProducerIds",      0,  0,    0,    BROKER,   CONTROLLER, ON_CONTROLLER),
    Api(  68, "ConsumerGroupHeartbeat",   0,  1,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  69, "ConsumerGroupDescribe",    0,  1,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  70, "ControllerRegistration",   0,  0,    0,    BROKER,   CONTROLLER, ON_CONTROLLER),
    Api(  73, "AssignReplicasToDirs",     0,  0,    0,    BROKER,   CONTROLLER, ON_CONTROLLER, elements=PARTITIONS),
    Api(  74, "ListConfigResources",      0,  1,    0,    CLIENT,   ANY,        ON_BROKER,
          note="v0 is ListClientMetricsResources and lists only those (KIP-1142)"),
    Api(  75, "DescribeTopicPartitions",  0,  0,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  76, "ShareGroupHeartbeat",      1,  1,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS,
          is_urgent=True),
    Api(  77, "ShareGroupDescribe",       1,  1,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  78, "ShareFetch",               1,  2,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  79, "ShareAcknowledge",         1,  2,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS,
          is_urgent=True),
    Api(  80, "AddRaftVoter",             0,  1,    0,    CLIENT,   CONTROLLER, ON_BOTH),
    Api(  81, "RemoveRaftVoter",          0,  0,    0,    CLIENT,   CONTROLLER, ON_BOTH),
    Api(  82, "UpdateRaftVoter",          0,  0,    0,    BROKER,   CONTROLLER, ON_CONTROLLER),
    Api(  83, "InitializeShareGroupState", 0, 0,    0,    BROKER,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  84, "ReadShareGroupState",      0,  0,    0,    BROKER,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  85, "WriteShareGroupState",     0,  1,    0,    BROKER,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  86, "DeleteShareGroupState",    0,  0,    0,    BROKER,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  87, "ReadShareGroupStateSummary", 0, 1,   0,    BROKER,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  88, "StreamsGroupHeartbeat",    0,  0,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS,
          is_urgent=True),
    Api(  89, "StreamsGroupDescribe",     0,  0,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  90, "DescribeShareGroupOffsets", 0, 1,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  91, "AlterShareGroupOffsets",   0,  0,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
    Api(  92, "DeleteShareGroupOffsets",  0,  0,    0,    CLIENT,   ANY,        ON_BROKER, elements=PARTITIONS),
]
# fmt: on

by_key = {api.key: api for api in API}
by_name = {api.name: api for api in API}
PRODUCE, FETCH, SHARE_FETCH, API_VERSIONS = (
    by_name[each] for each in ("Produce", "Fetch", "ShareFetch", "ApiVersions")
)
"""The rows that are processed in a special way between the frame and the response."""
