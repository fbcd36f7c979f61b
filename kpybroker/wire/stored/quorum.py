"""The records that a quorum stores about itself: control records of the metadata log and its snapshots, and the file
quorum-state.

Source: KIP-595, KIP-630 (snapshots), KIP-853 (voters as records).
"""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Int64, Uint16, Uuid


@part
class Voter:
    voter_id: Int32 = 0
    voter_directory_id: Uuid = field("1+")


@message("0-1", flexible=0)
class LeaderChangeMessage:
    version: Int16 = 0
    leader_id: Int32 = 0
    voters: list[Voter] = []
    granting_voters: list[Voter] = []


@message("0", flexible=0)
class SnapshotHeaderRecord:
    version: Int16 = 0
    last_contained_log_timestamp: Int64 = 0


@message("0", flexible=0)
class SnapshotFooterRecord:
    version: Int16 = 0


@message("0", flexible=0)
class KRaftVersionRecord:
    version: Int16 = 0
    kraft_version: Int16 = 0


@part
class Endpoint:
    name: str = ""
    host: str = ""
    port: Uint16 = 0


@part
class KRaftVersionFeature:
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@part
class RegisteredVoter:
    """A voter in a VotersRecord. Kafka calls this and two other structures Voter."""

    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    endpoints: list[Endpoint] = []
    kraft_version_feature: KRaftVersionFeature = field()


@message("0", flexible=0)
class VotersRecord:
    version: Int16 = 0
    voters: list[RegisteredVoter] = []


@part
class QuorumVoter:
    voter_id: Int32 = 0


@message("0-1", flexible=0)
class QuorumStateData:
    """The content of the file quorum-state, which is JSON with these names."""

    cluster_id: str = field("0")
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    voted_id: Int32 = -1
    voted_directory_id: Uuid = field("1+")
    applied_offset: Int64 = field("0")
    current_voters: list[QuorumVoter] | None = field("0", default=[])
