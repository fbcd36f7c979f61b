"""Tests that the index of ACLs decides according to Kafka's rules, by comparing it with a slow implementation that
follows them literally."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kpybroker.security.acls import ANY, MATCH, Acl, AclFilter, AclRules, PatternType, Permission
from kpybroker.security.authorizer import AclResource, Operation

pytestmark = pytest.mark.slow

ALL, READ, WRITE, DELETE, ALTER, DESCRIBE = (
    Operation.ALL,
    Operation.READ,
    Operation.WRITE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
)
LITERAL, PREFIXED = PatternType
DENY, ALLOW = Permission
TOPIC, GROUP = AclResource.TOPIC, AclResource.GROUP

names = st.text("ab*", max_size=3)
acls = st.builds(
    Acl,
    st.sampled_from((TOPIC, TOPIC, GROUP, 99, -1)),
    names,
    st.sampled_from((LITERAL, LITERAL, PREFIXED, PREFIXED, 0, 9)),
    st.sampled_from(("User:a", "User:b", "User:*", "Group:a", "")),
    st.sampled_from(("*", "1.1.1.1", "2.2.2.2", "1.1.1.0/24", "")),
    st.sampled_from((*Operation, 0, 1, 99, -1)),
    st.sampled_from((DENY, ALLOW, ALLOW, 0, 7, -1)),
)
askers = st.tuples(st.sampled_from(("User:a", "User:b", "User:c", "Group:a")), st.sampled_from(("1.1.1.1", "9.9.9.9")))


def concerns(acl: Acl, resource_type: int, name: str) -> bool:
    if acl.resource_type != resource_type:
        return False
    if acl.pattern_type == LITERAL:
        return acl.resource_name in (name, "*")
    return acl.pattern_type == PREFIXED and name.startswith(acl.resource_name)


def is_about(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, "User:*") and acl.host in (host, "*")


def allowing(operation: Operation) -> set[int]:
    implied = {
        Operation.DESCRIBE: {READ, WRITE, DELETE, ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }
    return {ALL, operation} | implied.get(operation, set())


def reference(
    held: Sequence[Acl], asker: tuple[str, str], operation: Operation, resource_type: int, name: str
) -> tuple[bool | None, bool]:
    """The decision of the ACLs, None if there is none, and whether any ACL concerns the resource."""
    concerning = [acl for acl in held if concerns(acl, resource_type, name)]
    mine = [acl for acl in concerning if is_about(acl, *asker)]
    if any(acl.permission == DENY and acl.operation in (ALL, operation) for acl in mine):
        return False, True
    if any(acl.permission == ALLOW and acl.operation in allowing(operation) for acl in mine):
        return True, True
    return None, bool(concerning)


def allow_first(
    held: Sequence[Acl], asker: tuple[str, str], operation: Operation, resource_type: int, name: str
) -> tuple[bool | None, bool]:
    """The rules with a mistake: ALLOW takes precedence over DENY."""
    allows = [acl for acl in held if acl.permission != DENY]
    said = reference(allows, asker, operation, resource_type, name)
    return said if said[0] else reference(held, asker, operation, resource_type, name)


def denials_imply(
    held: Sequence[Acl], asker: tuple[str, str], operation: Operation, resource_type: int, name: str
) -> tuple[bool | None, bool]:
    """The rules with a mistake: a DENY of READ also denies DESCRIBE."""
    mine = [acl for acl in held if concerns(acl, resource_type, name) and is_about(acl, *asker)]
    if any(acl.permission == DENY and acl.operation in allowing(operation) for acl in mine):
        return False, True
    return reference(held, asker, operation, resource_type, name)


def prefix_star_is_wildcard(
    held: Sequence[Acl], asker: tuple[str, str], operation: Operation, resource_type: int, name: str
) -> tuple[bool | None, bool]:
    """The rules with a mistake: PREFIXED `*` matches every name."""
    changed = [acl._replace(pattern_type=LITERAL) if acl[1:3] == ("*", PREFIXED) else acl for acl in held]
    return reference(changed, asker, operation, resource_type, name)


def rules_of(held: Sequence[Acl]) -> AclRules:
    rules = AclRules()
    for acl in held:
        rules.add(acl)
    return rules


def decided(
    held: Sequence[Acl], asker: tuple[str, str], operation: Operation, resource_type: int, name: str
) -> tuple[bool | None, bool]:
    verdict = rules_of(held).verdict(*asker, operation, resource_type, name)
    if verdict.by is not None:
        assert verdict.by in held
        assert (verdict.by.permission == ALLOW) == verdict.allowed
    return None if verdict.by is None else verdict.allowed, verdict.is_named


@given(st.lists(acls, max_size=12), askers, st.sampled_from(Operation), st.sampled_from((TOPIC, GROUP)), names)
@settings(max_examples=400)
def test_both_agree(
    held: list[Acl], asker: tuple[str, str], operation: Operation, resource_type: AclResource, name: str
) -> None:
    assert decided(held, asker, operation, resource_type, name) == reference(
        held, asker, operation, resource_type, name
    )


def acl(
    name: str = "a",
    operation: int = READ,
    permission: int = ALLOW,
    pattern: int = LITERAL,
    principal: str = "User:a",
    host: str = "*",
) -> Acl:
    return Acl(TOPIC, name, pattern, principal, host, operation, permission)


SHARP: list[tuple[list[Acl], Operation, str, bool | None]] = [
    ([acl(), acl(permission=DENY, principal="User:*")], READ, "a", False),
    ([acl("*"), acl("a", permission=DENY)], READ, "ab", True),
    ([acl(permission=DENY), acl(operation=DESCRIBE)], DESCRIBE, "a", True),
    ([acl("*", pattern=PREFIXED)], READ, "a", None),
    ([acl("", pattern=PREFIXED)], READ, "a", True),
    ([acl(host="1.1.1.0/24")], READ, "a", None),
    ([acl(operation=WRITE)], DESCRIBE, "a", True),
    ([acl(operation=Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS, "a", True),
    ([acl(operation=Operation.CREATE)], DESCRIBE, "a", None),
    ([acl(operation=DESCRIBE)], READ, "a", None),
]


@pytest.mark.parametrize(("held", "operation", "name", "said"), SHARP)
def test_the_edge_cases(held: list[Acl], operation: Operation, name: str, said: bool | None) -> None:
    asker = "User:a", "1.1.1.1"
    assert decided(held, asker, operation, TOPIC, name)[0] == said
    assert reference(held, asker, operation, TOPIC, name)[0] == said


@pytest.mark.parametrize("mutant", [allow_first, denials_imply, prefix_star_is_wildcard])
def test_the_edge_cases_detect_each_mistake_in_the_rules(mutant: Callable[..., tuple[bool | None, bool]]) -> None:
    asker = "User:a", "1.1.1.1"
    assert any(mutant(held, asker, operation, TOPIC, name)[0] != said for held, operation, name, said in SHARP)


@given(st.lists(acls, max_size=12), st.lists(st.integers(0, 11), max_size=8), askers, names)
@example([acl(), acl()], [0], ("User:a", "1.1.1.1"), "a")
def test_removed_acls_leave_nothing_behind(held: list[Acl], gone: list[int], asker: tuple[str, str], name: str) -> None:
    rules, left = rules_of(held), list(held)
    for index in gone:
        if left:
            rules.remove(left.pop(index % len(left)))
    assert vars(rules) == vars(rules_of(left))
    for operation in Operation:
        assert (
            rules.verdict(*asker, operation, TOPIC, name)[::2]
            == rules_of(left).verdict(*asker, operation, TOPIC, name)[::2]
        )
    if not left:
        assert not len(rules)
        assert not rules.verdict(*asker, READ, TOPIC, name).is_named


def test_an_unknown_acl_cannot_be_removed() -> None:
    with pytest.raises(KeyError):
        AclRules().remove(acl())


def allowed_somewhere(held: Sequence[Acl], asker: tuple[str, str], operation: Operation) -> bool:
    """Kafka's authorizeByResourceType for topics, implemented literally."""
    mine = [
        each
        for each in held
        if each.resource_type == TOPIC and is_about(each, *asker) and each.operation in (ALL, operation)
    ]
    denied = [each for each in mine if each.permission == DENY]
    if any(each.pattern_type == LITERAL and each.resource_name == "*" for each in denied):
        return False

    def is_covered(allow: Acl) -> bool:
        if allow.resource_name == "*" and allow.pattern_type == LITERAL:
            return False
        return any(
            (deny.pattern_type == LITERAL == allow.pattern_type and deny.resource_name == allow.resource_name)
            or (deny.pattern_type == PREFIXED and deny.resource_name and allow.resource_name.startswith(deny[1]))
            for deny in denied
        )

    return any(
        each.permission == ALLOW and each.pattern_type in (LITERAL, PREFIXED) and not is_covered(each) for each in mine
    )


@given(
    st.lists(acls.filter(lambda each: each.resource_name != ""), max_size=12),
    askers,
    st.sampled_from((READ, WRITE, Operation.CREATE)),
)
@settings(max_examples=400)
def test_both_agree_about_any_topic(held: list[Acl], asker: tuple[str, str], operation: Operation) -> None:
    said = rules_of(held).allows_some(*asker, operation, TOPIC)
    assert said == allowed_somewhere(held, asker, operation)


def selects(wanted: AclFilter, each: Acl) -> bool:
    """Whether a filter matches an ACL, implemented literally."""
    for asked, has in zip((wanted[0], wanted[5], wanted[6]), (each[0], each[5], each[6]), strict=True):
        if asked not in (ANY, has):
            return False
    for text, its in zip((wanted[3], wanted[4]), (each[3], each[4]), strict=True):
        if text is not None and text != its:
            return False
    if wanted.pattern_type == MATCH:
        name = wanted.resource_name
        return name is None or name == each.resource_name or concerns(each._replace(resource_type=0), 0, name)
    if wanted.pattern_type not in (ANY, each.pattern_type):
        return False
    return wanted.resource_name in (None, each.resource_name)


@given(
    acls,
    st.builds(
        AclFilter,
        st.sampled_from((ANY, TOPIC, GROUP)),
        st.none() | names,
        st.sampled_from((ANY, MATCH, LITERAL, PREFIXED)),
        st.none() | st.sampled_from(("User:a", "User:*")),
        st.none() | st.sampled_from(("*", "1.1.1.1")),
        st.sampled_from((ANY, ALL, READ)),
        st.sampled_from((ANY, DENY, ALLOW)),
    ),
)
@settings(max_examples=400)
def test_filters_select_the_matching_acls(each: Acl, wanted: AclFilter) -> None:
    assert wanted.matches(each) == selects(wanted, each)
    assert AclFilter(*each).acl in (each, None)
    if wanted.acl is not None:
        assert wanted.matches(each) == (wanted.acl == each)


def test_a_decision_examines_at_most_one_pattern_per_length() -> None:
    """A decision among 10,000 ACLs costs no more than among a few. The test counts the examined patterns."""
    rules = AclRules()
    for number in range(5000):
        rules.add(acl(f"topic-{number:05d}", principal=f"User:{number}"))
        rules.add(acl(f"prefix-{number:05d}-", pattern=PREFIXED, principal=f"User:{number}"))
    assert len(rules) == 10_000
    looked_at = list(rules.meeting(TOPIC, "prefix-00077-x"))
    assert [name for _, name, _ in looked_at] == ["prefix-00077-"]
    assert rules.verdict("User:77", "1.1.1.1", READ, TOPIC, "prefix-00077-x").allowed


def test_whether_any_topic_is_allowed_looks_at_ones_own_acls_alone() -> None:
    rules = AclRules()
    for number in range(5000):
        rules.add(acl(f"prefix-{number:05d}-", pattern=PREFIXED, principal=f"User:{number}"))
    for who, patterns in (("User:77", [(PREFIXED, "prefix-00077-")]), ("User:nobody", [])):
        looked_at = rules.patterns_of([(who, "*"), ("User:*", "*")], TOPIC)
        assert [(pattern, name) for _, pattern, name in looked_at] == patterns
        assert rules.allows_some(who, "1.1.1.1", READ, TOPIC) == bool(patterns)
