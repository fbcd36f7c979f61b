"""The recorded matrix of refusals is complete: each API has a case in which it is served, and each operation in a case
makes a difference. A rule that requires fewer or other operations changes a recorded response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kpybroker.call import BROKER, CONTROLLER
from kpybroker.client.peer import Peer
from kpybroker.security.authorizer import AclResource, Authorizer, Operation
from kpybroker.security.principal import Principal
from kpybroker.serving.authorization import ASK_NOBODY
from kpybroker.serving.authorized_operations import SUPPORTED
from kpybroker.wire.api import API, Api
from oracle.authorization import ALL_OTHERS, NAMES, NOTHING, USER, Case, Play
from oracle.authorization_matrix import MATRIX, RECORDED, compact, properties, some_ports
from tests.serving import serving

RECORDING: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text())
NO_CASE = {(CONTROLLER, "DescribeUserScramCredentials"), (CONTROLLER, "DescribeDelegationToken")}
"""Apache Kafka 4.3.1 fails at them (docs/roadmap.md)."""
NO_DIFFERENCE = {
    ("DescribeCluster v0", ""): "anybody may describe the cluster",
    ("DescribeCluster v2", ""): "anybody may describe the cluster",
    ("DeleteTopics v6 by id", "DESCRIBE on TOPIC"): "a topic is deleted by its id without DESCRIBE",
    ("FindCoordinator v6 of an unknown type", ""): "nobody may ask for it",
    ("CreateTopics v4", "DESCRIBE_CONFIGS"): "v5 is the first that returns settings",
    ("CreateTopics v7 of the metadata log", "CREATE"): "nobody may create it",
}
SHOWS_OPERATIONS = (
    "Metadata v8",
    "Metadata v12",
    "with operations",
    "and operations",
    "DescribeTopicPartitions v0",
    "of controllers",
)
"""Responses with the operations that the user is authorized for, all of which differ without them."""


def side_of(case: Case) -> str:
    return CONTROLLER if case.at_controller else BROKER


@pytest.mark.parametrize("api", API, ids=lambda api: api.name)
def test_each_api_has_a_case_on_each_listener(api: Api) -> None:
    if api.name in ASK_NOBODY:
        return
    there = {(side_of(case), case.api) for case in MATRIX}
    assert {(side, api.name) for side in api.listens.value} - NO_CASE <= there, "add one to oracle/authorization.py"


def test_each_case_is_recorded() -> None:
    titles = [case.title for case in MATRIX]
    assert sorted(titles) == sorted(RECORDING), "python -m oracle.authorization_matrix records them"


@pytest.mark.parametrize("case", MATRIX, ids=lambda case: case.title)
def test_each_operation_that_a_case_names_matters_and_no_other(case: Case) -> None:
    told = RECORDING[case.title]
    for denied in case.denials:
        if denied in (NOTHING, ALL_OTHERS) or denied.endswith(" alone"):
            continue
        is_same = any(
            case.title.removesuffix(" at a controller") in (title, f"{title} that returns settings")
            and denied.startswith(operation)
            for title, operation in NO_DIFFERENCE
        )
        assert (denied not in told) == is_same, denied
    if not any(each in case.title for each in SHOWS_OPERATIONS):
        assert ALL_OTHERS not in told, "it asks for an operation that the case does not name"


class Question(NamedTuple):
    """A call of the authorizer by a rule: the operation, the resource type, and the method of the authorizer."""

    api: str
    side: str
    way: str
    operation: Operation
    resource: AclResource


class Change(NamedTuple):
    """A change of a call: the operation and the name that replace those of the call. With `operation` None, the call is
    always granted."""

    operation: Operation | None = None
    name: str | None = None


class Mutant:
    """An authorizer that forwards its calls to a real one, and records the calls about the user. The call `question` is
    modified by `change`."""

    grants = None

    def __init__(self, real: Authorizer) -> None:
        self._real = real
        self.case: Case | None = None
        self.asked: dict[Question, set[str]] = {}
        """The names of the resources, by call."""
        self.question: Question | None = None
        self.change = Change()

    def _changed(
        self, principal: Principal, way: str, operation: Operation, resource: AclResource, name: str
    ) -> Change | None:
        if self.case is None or principal.name != USER:
            return Change(operation, name)
        question = Question(self.case.api, side_of(self.case), way, operation, resource)
        self.asked.setdefault(question, set()).add(name)
        if question != self.question:
            return Change(operation, name)
        return self.change._replace(name=self.change.name or name) if self.change.operation else None

    def allows(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource, name: str
    ) -> bool:
        by = self._changed(principal, "allows", operation, resource, name)
        if by is None:
            return True
        assert by.operation is not None
        assert by.name is not None
        return self._real.allows(principal, host, api_key, by.operation, resource, by.name)

    def allows_any(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource
    ) -> bool:
        by = self._changed(principal, "allows_any", operation, resource, "")
        if by is None:
            return True
        assert by.operation is not None
        return self._real.allows_any(principal, host, api_key, by.operation, resource)

    def operations(
        self, principal: Principal, host: str, asked: Iterable[Operation], resource: AclResource, name: str
    ) -> int:
        found, asked = 0, tuple(asked)
        way = "is shown" if len(asked) == 1 else "operations"
        for each in asked:
            by = self._changed(principal, way, each, resource, name)
            if by is None or self._real.operations(principal, host, (by.operation or each,), resource, by.name or name):
                found |= 1 << each
        return found


class Stage:
    """A broker whose authorizer is replaced by a mutant."""

    def __init__(self, play: Play, admin: Peer, mutant: Mutant) -> None:
        self._play, self._admin, self.mutant = play, admin, mutant

    async def is_as_recorded(self, case: Case) -> bool:
        self.mutant.case = case
        try:
            told = await self._play.told(self._admin, case)
        finally:
            self.mutant.case = None
        return compact({case.title: told})[case.title] == RECORDING[case.title]

    async def is_noticed(self, question: Question, change: Change) -> bool:
        """Whether any response of the API then differs from the recorded one."""
        self.mutant.question, self.mutant.change = question, change
        for case in MATRIX:
            if (case.api, side_of(case)) == (question.api, question.side) and not await self.is_as_recorded(case):
                return True
        return False


@asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    ports = some_ports()
    async with serving(directory, {**properties(ports), "offsets.topic.num.partitions": "50"}) as node:
        real = node.broker.metadata.authorizer
        assert real is not None
        node.broker.metadata.authorizer = mutant = Mutant(real)
        play = Play(ports, MATRIX)
        async with play.admin() as admin:
            yield Stage(play, admin, mutant)


def makes_no_difference(question: Question) -> bool:
    """Whether the result of the call does not affect the response. That is the case for calls of the connection limits,
    which check whether a client may be a node, and for authorized operations on a resource that the user may not
    describe."""
    if question.way == "operations":
        needed = Operation.ALTER if question.api == "DescribeCluster" else Operation.DESCRIBE
        return question.operation in (Operation.DESCRIBE, needed)
    is_of_limits = question.way == "is shown" and question.operation is Operation.CLUSTER_ACTION
    return is_of_limits and question.api != "OffsetForLeaderEpoch"


def changes(question: Question, names: set[str]) -> list[Change]:
    """The changes of a call: it is always granted, it has another operation, or it has the same resource for all
    names."""
    there = SUPPORTED.get(question.resource, (Operation.DESCRIBE, Operation.WRITE))
    if question.way == "operations":
        return [Change()]
    found = [Change(), *(Change(each) for each in there if each is not question.operation)]
    if len(names) > 1:
        found.append(Change(question.operation, NAMES[question.resource]))
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wrong_rule_is_noticed(tmp_path: Path) -> None:
    """Each call of the authorizer by each API is changed in several ways."""

    async def whole() -> None:
        async with stage(tmp_path) as on:
            wrong = [case.title for case in MATRIX if not await on.is_as_recorded(case)]
            assert not wrong
            mutants = [
                (question, change)
                for question, names in on.mutant.asked.items()
                if not makes_no_difference(question)
                for change in changes(question, names)
            ]
            silent = [each for each in mutants if not await on.is_noticed(*each)]
            assert len(mutants) > 900
            assert not silent, f"{len(silent)} of {len(mutants)}"

    asyncio.run(whole())
