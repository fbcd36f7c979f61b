"""A template that is filled in gives the same bytes as the builder."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.wire import api as api_table
from kpybroker.wire import response_templates
from kpybroker.wire.codec.building import LARGE_BYTES
from kpybroker.wire.frame import encode_response
from kpybroker.wire.rpc import fetch, produce

int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
topics = st.text(st.characters(codec="utf-8"), max_size=40)
ids = st.binary(min_size=16, max_size=16)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(range(3, 14)), topics, ids, int32, int64, int64, int32)
def test_an_acknowledgement(
    version: int, topic: str, topic_id: bytes, index: int, start: int, base_offset: int, correlation_id: int
) -> None:
    def response(offset: int) -> produce.Response:
        answer = produce.PartitionProduceResponse(index=index, base_offset=offset, log_start_offset=start)
        told = produce.TopicProduceResponse(name=topic, topic_id=topic_id, partition_responses=[answer])
        return produce.Response(responses=[told])

    form = response_templates.produce_form(response(response_templates.MARK), version)
    built = encode_response(correlation_id, api_table.by_name["Produce"], version, response(base_offset))
    assert b"".join(response_templates.Acknowledged(form, base_offset).buffers(correlation_id)) == b"".join(built)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(range(4, 19)),
    topics,
    ids,
    int32,
    st.booleans(),
    st.tuples(int32, int64, int64, int64),
    st.one_of(st.binary(max_size=300), st.sampled_from([LARGE_BYTES - 1, LARGE_BYTES, 70_000]).map(bytes)),
    int32,
)
def test_fetched_records(
    version: int,
    topic: str,
    topic_id: bytes,
    index: int,
    committed: bool,
    numbers: tuple[int, int, int, int],
    records: bytes,
    correlation_id: int,
) -> None:
    form = response_templates.fetch_form(topic, topic_id, index, version, committed=committed)
    if form is None:
        assert version < api_table.FETCH.flexible, "only these versions have no template"
        return
    session_id, high_watermark, last_stable, start = numbers
    row = fetch.PartitionData(
        partition_index=index,
        high_watermark=high_watermark,
        last_stable_offset=last_stable,
        log_start_offset=start,
        aborted_transactions=[] if committed else None,
        records=records,
    )
    told = fetch.FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=[row])
    response = fetch.Response(session_id=session_id, responses=[told])
    built = encode_response(correlation_id, api_table.FETCH, version, response)
    filled = response_templates.Fetched(form, session_id, numbers[1:], memoryview(records))
    assert b"".join(filled.buffers(correlation_id)) == b"".join(built)


def test_a_topic_id_that_looks_like_a_mark_has_no_template() -> None:
    for at in range(9):
        topic_id = bytes(at) + response_templates.MARK_BYTES + bytes(8 - at)
        assert response_templates.fetch_form("t", topic_id, 0, 13, committed=False) is None
