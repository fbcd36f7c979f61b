"""The APIs that are served: key, versions, first flexible version, whom it is for, where it runs. Written only here.

ApiVersions, dispatch and the README's matrix are printed from this table; tests/test_table.py demands of every row its
message, handler, test and golden vectors.
"""

from __future__ import annotations

import importlib
import re
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

NEVER = 1 << 15
"""The first flexible version of an API that has none."""


class Audience(Enum):
    """Who sends the requests."""

    CLIENT = "clients"
    BROKER = "brokers"


class RunsOn(Enum):
    """Which node does the work; any node takes the request."""

    ANY = "the node asked"
    CONTROLLER = "the active controller"


class Api(NamedTuple):
    """One row. min and max are the versions served; flexible is the first with header v2 and tagged fields (KIP-482).

    advertise_from: the lowest version that ApiVersions shows, where it is not min; note says why.
    """

    key: int
    name: str
    min: int
    max: int
    flexible: int
    audience: Audience
    runs_on: RunsOn
    advertise_from: int | None = None
    note: str = ""

    @property
    def module(self) -> str:
        """The name of its files: wire/rpc, handlers, tests/handlers."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.name).lower()

    @property
    def request(self) -> Any:
        """The class of its requests; imported when first asked for."""
        return _messages(self).Request

    @property
    def response(self) -> Any:
        """The class of its responses; imported when first asked for."""
        return _messages(self).Response

    @property
    def advertised(self) -> tuple[int, int]:
        """The range that ApiVersions shows."""
        return (self.min if self.advertise_from is None else self.advertise_from), self.max


@cache
def _messages(api: Api) -> Any:
    return importlib.import_module(f"kpybroker.wire.rpc.{api.module}")


CLIENT = Audience.CLIENT
ANY, CONTROLLER = RunsOn

# fmt: off
#        key  name                    versions  flexible  audience  runs on
API = [
    Api(   0, "Produce",                  3, 13,    9,    CLIENT,   ANY, advertise_from=0,
          note="advertised from 0 or librdkafka before 2.11 stops compressing (KAFKA-18659)"),
    Api(   1, "Fetch",                    4, 18,   12,    CLIENT,   ANY),
    Api(   2, "ListOffsets",              1, 11,    6,    CLIENT,   ANY),
    Api(   3, "Metadata",                 0, 13,    9,    CLIENT,   ANY,
          note="v0: no topics means all; from v1 null means all"),
    Api(   8, "OffsetCommit",             2, 10,    8,    CLIENT,   ANY),
    Api(   9, "OffsetFetch",              1, 10,    6,    CLIENT,   ANY),
    Api(  10, "FindCoordinator",          0,  6,    3,    CLIENT,   ANY),
    Api(  11, "JoinGroup",                0,  9,    6,    CLIENT,   ANY),
    Api(  12, "Heartbeat",                0,  4,    4,    CLIENT,   ANY),
    Api(  13, "LeaveGroup",               0,  5,    4,    CLIENT,   ANY),
    Api(  14, "SyncGroup",                0,  5,    4,    CLIENT,   ANY),
    Api(  15, "DescribeGroups",           0,  6,    5,    CLIENT,   ANY),
    Api(  16, "ListGroups",               0,  5,    3,    CLIENT,   ANY),
    Api(  18, "ApiVersions",              0,  4,    3,    CLIENT,   ANY,
          note="the response header stays v0, and an unknown version is answered in v0 (KIP-511)"),
    Api(  19, "CreateTopics",             2,  7,    5,    CLIENT,   CONTROLLER),
    Api(  20, "DeleteTopics",             1,  6,    4,    CLIENT,   CONTROLLER),
    Api(  21, "DeleteRecords",            0,  2,    2,    CLIENT,   ANY),
    Api(  22, "InitProducerId",           0,  5,    2,    CLIENT,   ANY,
          note="idempotent producers only; v6 (KIP-939) is unstable in Kafka 4.3 and not advertised there either"),
    Api(  23, "OffsetForLeaderEpoch",     2,  4,    4,    CLIENT,   ANY),
    Api(  32, "DescribeConfigs",          1,  4,    4,    CLIENT,   ANY),
    Api(  33, "AlterConfigs",             0,  2,    2,    CLIENT,   CONTROLLER),
    Api(  35, "DescribeLogDirs",          1,  5,    2,    CLIENT,   ANY),
    Api(  37, "CreatePartitions",         0,  3,    2,    CLIENT,   CONTROLLER),
    Api(  42, "DeleteGroups",             0,  2,    2,    CLIENT,   ANY),
    Api(  44, "IncrementalAlterConfigs",  0,  1,    1,    CLIENT,   CONTROLLER),
    Api(  47, "OffsetDelete",             0,  0, NEVER,   CLIENT,   ANY),
    Api(  60, "DescribeCluster",          0,  2,    0,    CLIENT,   ANY),
    Api(  61, "DescribeProducers",        0,  0,    0,    CLIENT,   ANY),
    Api(  74, "ListConfigResources",      0,  1,    0,    CLIENT,   ANY,
          note="v0 is ListClientMetricsResources and asks for those only (KIP-1142)"),
    Api(  75, "DescribeTopicPartitions",  0,  0,    0,    CLIENT,   ANY),
]
# fmt: on

by_key = {api.key: api for api in API}
by_name = {api.name: api for api in API}
