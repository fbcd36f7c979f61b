"""CreateAcls and DeleteAcls in the controller: records, limits and atomic deletion. tests/golden has Kafka's
responses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.controller import acls as decisions
from kpybroker.controller.acl_commands import CreateAcls, DeleteAcls
from kpybroker.controller.machine import WHOLE_RECORDS
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.acls import record_of
from kpybroker.raft.log.metadata_log import BATCH_LIMIT_BYTES
from kpybroker.security.acls import ANY, Acl, AclFilter, PatternType, Permission
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.serving.fair_loop import SLICE
from kpybroker.wire.stored import metadata as stored
from tests.controller.stage import Stage

EVERYTHING = AclFilter()


def acl(name: str = "t", principal: str = "User:ann", host: str = "*") -> Acl:
    return Acl(AclResource.TOPIC, name, PatternType.LITERAL, principal, host, Operation.READ, Permission.ALLOW)


def create(stage: Stage, *acls: Acl) -> list[int]:
    return [result.error_code for result in stage.ask(CreateAcls(acls))]


def written(stage: Stage) -> list[object]:
    kinds = (stored.AccessControlEntryRecord, stored.RemoveAccessControlEntryRecord)
    return [each.message for each in stage.log if isinstance(each.message, kinds)]


def names(stage: Stage) -> list[str]:
    return [each.resource_name for each in stage.image().acls.values()]


def test_an_equal_acl_is_a_success_without_a_record() -> None:
    stage = Stage()
    assert create(stage, acl(), acl(), acl("u")) == [0, 0, 0]
    assert create(stage, acl("u"), acl()) == [0, 0]
    assert len(written(stage)) == 2
    assert names(stage) == ["t", "u"]
    ids = [bytes(record.id) for record in written(stage)]  # type: ignore[attr-defined]
    assert len(set(ids)) == 2
    assert stage.state.acl_ids == {each: uuid for uuid, each in stage.image().acls.items()}


def test_there_is_a_limit_of_acls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "ACLS_MAX", 2)
    stage = Stage()
    assert create(stage, acl("a"), acl("b"), acl("a"), acl("c")) == [0, 0, 0, ErrorCode.POLICY_VIOLATION]
    assert create(stage, acl("a"), acl("c")) == [0, ErrorCode.POLICY_VIOLATION]
    stage.ask(DeleteAcls((AclFilter(resource_name="a"),)))
    assert create(stage, acl("c")) == [0]


@pytest.mark.parametrize("field", ["resource_name", "principal", "host"])
@pytest.mark.parametrize(("length", "code"), [(2048, 0), (2049, ErrorCode.INVALID_REQUEST)])
def test_texts_have_a_limit(field: str, length: int, code: int) -> None:
    assert create(Stage(), acl()._replace(**{field: "x:" + "x" * (length - 2)})) == [code]


def test_the_largest_slice_is_one_batch_of_the_log() -> None:
    stage = Stage()
    wide = chr(0x10000) * 2040
    largest = [acl(f"{number}{wide}", f"User:{wide}", wide) for number in range(SLICE)]
    assert set(create(stage, *largest)) == {0}
    assert sum(len(each.value or b"") for each in stage.log) < BATCH_LIMIT_BYTES


def test_all_matching_acls_are_deleted_once() -> None:
    stage = Stage()
    create(stage, acl("a"), acl("b"), acl("c", "User:bob"))
    told = stage.ask(DeleteAcls((AclFilter(principal="User:ann"), AclFilter(resource_name="a"), AclFilter(*acl("a")))))
    assert [[each.resource_name for each in result.deleted] for result in told] == [["a", "b"], ["a"], ["a"]]
    assert names(stage) == ["c"]
    assert len(written(stage)) == 5


def test_a_filter_with_an_unknown_code_is_refused_alone() -> None:
    stage = Stage()
    create(stage, acl("a"), acl("b"))
    filters = (
        AclFilter(resource_type=99),
        AclFilter(pattern_type=99),
        AclFilter(operation=-1),
        AclFilter(permission=99),
        AclFilter(resource_name="a"),
    )
    told = stage.ask(DeleteAcls(filters))
    bad = ErrorCode.INVALID_REQUEST
    assert [result.error_code for result in told] == [bad, bad, bad, bad, 0]
    assert names(stage) == ["b"]


def test_too_many_matches_delete_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "DELETED_MAX", 3)
    stage = Stage()
    create(stage, *(acl(name) for name in "abcd"))
    with pytest.raises(KafkaError, match="Cannot remove more than 3 acls") as refused:
        stage.ask(DeleteAcls((AclFilter(resource_name="a"), EVERYTHING)))
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert len(names(stage)) == 4
    stage.ask(DeleteAcls((AclFilter(resource_name="a"),)))
    stage.ask(DeleteAcls((EVERYTHING,)))
    assert not names(stage)


def test_the_listed_acls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "LISTED_MAX", 5)
    stage = Stage()
    create(stage, acl("a"), acl("b"))
    with pytest.raises(KafkaError, match="Cannot remove more"):
        stage.ask(DeleteAcls((EVERYTHING,) * 3))
    assert len(stage.ask(DeleteAcls((EVERYTHING,) * 2))) == 2


def test_the_work_of_filters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "COMPARED_MAX", 4)
    stage = Stage()
    create(stage, acl("a"), acl("b"))
    with pytest.raises(KafkaError, match="Comparing 3 filters with 2 ACLs takes too long"):
        stage.ask(DeleteAcls((AclFilter(host="x"),) * 3))
    told = stage.ask(DeleteAcls((AclFilter(*acl("a")),) * 50 + (AclFilter(host="x"),) * 2))
    assert sum(len(result.deleted) for result in told) == 50


def test_thousands_are_deleted_in_one_transaction() -> None:
    stage = Stage()
    wide = "x" * 2000
    for start in range(0, 2 * WHOLE_RECORDS, SLICE):
        create(stage, *(acl(f"{number}", f"User:{wide}", wide) for number in range(start, start + SLICE)))
    before = len(stage.log)
    stage.ask(DeleteAcls((EVERYTHING,)))
    removed = [each.message for each in stage.log[before:]]
    assert len(removed) >= 2 * WHOLE_RECORDS
    assert not stage.image().acls


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.booleans())))
def test_equal_acls_in_a_foreign_log_stay_findable(changes: list[tuple[int, str, bool]]) -> None:
    """Apache Kafka does not write equal ACLs. If a log contains some, the id is that of the last one, also after a
    snapshot."""
    stage = Stage()
    for number, name, is_added in changes:
        uuid = bytes([number]) * 16
        stage.state.replay(record_of(uuid, acl(name)) if is_added else stored.RemoveAccessControlEntryRecord(id=uuid))
        assert stage.state.acl_ids == {each: held for held, each in stage.state.acls.items()}
        selected = AclFilter(*acl("a"))
        told = decisions.delete_acls(stage.state, DeleteAcls((selected,)))[1]
        assert len(told[0].deleted) == sum(each == acl("a") for each in stage.state.acls.values())


def test_any_is_a_code_only_for_filters() -> None:
    assert create(Stage(), acl()._replace(operation=ANY)) == [ErrorCode.INVALID_REQUEST]
