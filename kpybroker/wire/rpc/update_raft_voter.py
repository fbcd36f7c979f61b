"""UpdateRaftVoter (82): a voter reports its new endpoints and versions to the leader (KIP-853)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Uint16, Uuid


@part
class Listener:
    name: str = ""
    host: str = ""
    port: Uint16 = 0


@part
class KRaftVersionFeature:
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@message("0", flexible=0)
class Request:
    cluster_id: str | None = ""
    current_leader_epoch: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: list[Listener] = []
    kraft_version_feature: KRaftVersionFeature = field()


@part
class CurrentLeader:
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    host: str = ""
    port: Int32 = 0


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    current_leader: CurrentLeader | None = field("0+", tag=0)
