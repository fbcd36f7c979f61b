"""What a leader answers to a follower whose log is longer than its own, as Apache Kafka's leader does."""

from __future__ import annotations

from kpybroker.errors import ErrorCode
from tests.replication.test_wrong_senders import fetched
from tests.replication.virtual import VirtualCluster, play


def test_a_longer_follower_learns_at_once_where_to_truncate() -> None:
    """Apache Kafka's follower logs a warning and asks for the log end, if it gets OFFSET_OUT_OF_RANGE instead."""

    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3))
        end = await cluster.put(b"x") + 1
        await cluster.until(lambda: cluster.replica(1).log.high_watermark == end, "it is committed")
        image = cluster.broker(1).metadata.image
        topic_id, epoch = image.topics["t"].id, image.brokers[2].epoch
        now = image.topics["t"].partitions[0].leader_epoch
        for offset, last_epoch, code, told_end in (
            (end, now, 0, -1),
            (end + 3, now, 0, end),
            (end + 3, -1, ErrorCode.OFFSET_OUT_OF_RANGE, -1),
            (-1, now, ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        ):
            request = fetched(topic_id, offset, 2, epoch, current_leader_epoch=now, last_fetched_epoch=last_epoch)
            told = await cluster.ask("Fetch", request, 1)
            (row,) = told.responses[0].partitions
            diverging = row.diverging_epoch
            assert (row.error_code, -1 if diverging is None else diverging.end_offset) == (code, told_end)
            assert diverging is None or told_end < 0 or diverging.epoch == now
        assert cluster.replica(1).log.high_watermark == end, "records that the leader does not have are not counted"

    play(scene)
