"""Scenes of client quotas: which quotas can be set for which entities, the results of filters, and refusals."""

from typing import Any

from kpybroker.wire.rpc import alter_client_quotas, describe_client_quotas
from oracle.requests import versions
from oracle.scenes import Ask

EXACT, DEFAULT, ANY = 0, 1, 2
Entity = list[tuple[str, str | None]]
Ops = list[tuple[str, float | None]]
"""Each quota's key and value; the value None removes the quota."""
RATE = "producer_byte_rate"
INFINITE = float("inf")
SET: list[tuple[Entity, Ops]] = [
    ([("user", "ann"), ("client-id", "one")], [(RATE, 1000.0), ("consumer_byte_rate", 2000.0)]),
    ([("client-id", None), ("user", "ann")], [(RATE, 1001.0)]),
    ([("user", "ann")], [("request_percentage", 12.5)]),
    ([("user", None), ("client-id", "one")], [(RATE, 1003.0)]),
    ([("user", None), ("client-id", None)], [(RATE, 1004.0)]),
    ([("user", None)], [("controller_mutation_rate", 0.25)]),
    ([("client-id", "one")], [(RATE, 1006.0)]),
    ([("client-id", None)], [(RATE, 1007.0)]),
    ([("ip", "10.0.0.1")], [("connection_creation_rate", 7.0)]),
    ([("ip", None)], [("connection_creation_rate", 8.0)]),
]


class QuotaScenes:
    """Sets the same quotas with every version; each version removes its quotas at the end."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    def all(self) -> None:
        for version in versions("AlterClientQuotas"):
            self.alter("nothing", [], version)
            self.describe("none are set", [], version)
            self.alter("all at once", SET, version)
            self.filters(version)
            self.changes(version)
            self.refusals(version)
            self.alter("all removed", [(who, [(key, None) for key, _ in ops]) for who, ops in SET], version)
            self.describe("none are left", [], version)

    def alter(self, note: str, entries: list[tuple[Entity, Ops]], version: int = 1, *, validate: bool = False) -> Any:
        rpc = alter_client_quotas
        asked = [
            rpc.EntryData(
                entity=[rpc.EntityData(entity_type=kind, entity_name=name) for kind, name in who],
                ops=[rpc.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
            )
            for who, ops in entries
        ]
        told = self.ask("AlterClientQuotas", version, rpc.Request(entries=asked, validate_only=validate), note)
        if note:
            self.settle()
        return told

    def settle(self) -> None:
        """Wait until the broker has applied the controller's earlier decisions."""
        mark: Entity = [("client-id", "mark")]
        for value in (1.0, None):
            self.alter("", [(mark, [(RATE, value)])])
            while bool(self.describe("", [("client-id", EXACT, "mark")]).entries) != (value is not None):
                pass

    def describe(
        self, note: str, components: list[tuple[str, int, str | None]], version: int = 1, *, strict: bool = False
    ) -> Any:
        rpc = describe_client_quotas
        asked = [rpc.ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
        return self.ask("DescribeClientQuotas", version, rpc.Request(components=asked, strict=strict), note)

    def filters(self, version: int) -> None:
        ann, one = ("user", EXACT, "ann"), ("client-id", EXACT, "one")
        any_user, any_client = ("user", ANY, None), ("client-id", ANY, None)
        wanted: dict[str, list[tuple[str, int, str | None]]] = {
            "all": [],
            "a user": [ann],
            "a client id": [one],
            "both": [ann, one],
            "the default user": [("user", DEFAULT, None)],
            "the default client id": [("client-id", DEFAULT, None)],
            "both defaults": [("user", DEFAULT, None), ("client-id", DEFAULT, None)],
            "any user": [any_user],
            "any client id": [any_client],
            "any of both": [any_client, any_user],
            "a user with any client id": [ann, any_client],
            "an address": [("ip", EXACT, "10.0.0.1")],
            "any address": [("ip", ANY, None)],
            "the default address": [("ip", DEFAULT, None)],
            "nobody": [("user", EXACT, "nobody")],
            "an exact match without a name": [("user", EXACT, None)],
            "a default with a name": [("user", DEFAULT, "ann")],
            "any with a name": [("user", ANY, "ann")],
            "an address and a user": [("ip", ANY, None), any_user],
            "a type twice": [ann, ("user", EXACT, "bob")],
            "an unknown type": [("group", ANY, None)],
            "an empty type": [("", ANY, None)],
            "an unknown match type": [("user", 3, None)],
            "a negative match type": [("user", -1, None)],
        }
        for note, components in wanted.items():
            self.describe(note, components, version)
            self.describe(f"{note}, strictly", components, version, strict=True)

    def changes(self, version: int) -> None:
        bob: Entity = [("user", "bob")]
        bobs: list[tuple[str, int, str | None]] = [("user", EXACT, "bob")]
        self.alter("validate only", [(bob, [(RATE, 5.0)])], version, validate=True)
        self.describe("after validate only", bobs, version)
        self.alter("set", [(bob, [(RATE, 5.0), ("consumer_byte_rate", 6.0)])], version)
        self.alter("set again", [(bob, [(RATE, 5.0)])], version)
        self.alter("set otherwise", [(bob, [(RATE, 9.0), ("consumer_byte_rate", None)])], version)
        self.describe("after setting", bobs, version)
        self.alter("a missing quota removed", [(bob, [("request_percentage", None)])], version)
        self.alter("removed", [(bob, [(RATE, None)])], version)
        self.describe("after removing", bobs, version)
        self.alter("no changes", [(bob, [])], version)

    def refusals(self, version: int) -> None:
        bob: Entity = [("user", "bob")]
        a_rate: Ops = [(RATE, 5.0)]
        connections: Ops = [("connection_creation_rate", 5.0)]
        wanted: dict[str, tuple[Entity, Ops]] = {
            "an unknown type of entity": ([("group", "g")], a_rate),
            "a type of entity without a name": ([("", "g")], a_rate),
            "no entity": ([], a_rate),
            "an empty user": ([("user", "")], a_rate),
            "an empty client id": ([("client-id", "")], a_rate),
            "an empty address": ([("ip", "")], connections),
            "a user twice": ([("user", "bob"), ("user", "carl")], a_rate),
            "an address with a user": ([("ip", "10.0.0.1"), ("user", "bob")], connections),
            "an address with a client id": ([("ip", "10.0.0.1"), ("client-id", "one")], connections),
            "a rate of bytes of an address": ([("ip", "10.0.0.1")], a_rate),
            "connections of a user": (bob, connections),
            "an invalid address": ([("ip", "300.1.1.1.1")], connections),
            "a name instead of an address": ([("ip", "not an address")], connections),
            "an IPv6 address": ([("ip", "::1")], [("connection_creation_rate", None)]),
            "an unknown key": (bob, [("nobody_knows", 5.0)]),
            "an empty key": (bob, [("", 5.0)]),
            "an unknown key removed": (bob, [("nobody_knows", None)]),
            "zero": (bob, [(RATE, 0.0)]),
            "less than zero": (bob, [(RATE, -1.0)]),
            "half a byte": (bob, [(RATE, 0.5)]),
            "1.5 bytes": (bob, [(RATE, 1.5)]),
            "nearly an integer": (bob, [(RATE, 1.0000001), (RATE, None)]),
            "infinity": (bob, [(RATE, INFINITE)]),
            "more than a long": (bob, [(RATE, 2.0**63)]),
            "the largest double in a long": (bob, [(RATE, 2.0**63 - 1025)]),
            "a negative percentage": (bob, [("request_percentage", -0.5)]),
            "no percent": (bob, [("request_percentage", 0.0)]),
            "half a connection": ([("ip", "10.0.0.2")], [("connection_creation_rate", 0.5)]),
            "no connection": ([("ip", "10.0.0.2")], [("connection_creation_rate", 0.0)]),
            "more connections than an int": ([("ip", "10.0.0.2")], [("connection_creation_rate", 2.0**31)]),
            "the same key twice": (bob, [(RATE, 5.0), (RATE, 6.0)]),
            "one valid and one invalid": (bob, [(RATE, 5.0), ("nobody_knows", 5.0)]),
        }
        for note, entry in wanted.items():
            self.alter(note, [entry], version)
            self.describe(f"after: {note}", [("user", EXACT, "bob")], version)
        self.alter("clean", [(bob, [(RATE, None)]), ([("ip", "10.0.0.2")], [("connection_creation_rate", None)])])
        self.alter("an entity twice", [(bob, a_rate), (bob, [("consumer_byte_rate", 6.0)])], version)
        self.describe("after: an entity twice", [("user", EXACT, "bob")], version)
        self.alter("one of two invalid", [(bob, [("nobody_knows", 1.0)]), ([("user", "carl")], a_rate)], version)
        self.describe("after: one of two invalid", [("user", ANY, None)], version)
        gone: Ops = [(RATE, None), ("consumer_byte_rate", None)]
        self.alter("clean", [(bob, gone), ([("user", "carl")], gone)], version)
