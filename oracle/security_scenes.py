"""Scenes of a broker without an authorizer and without logins: ACLs, delegation tokens, SCRAM credentials, and login
attempts."""

from typing import Any

from kpybroker.wire.rpc import (
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    delete_acls,
    describe_acls,
    describe_delegation_token,
    describe_user_scram_credentials,
    expire_delegation_token,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
)
from oracle.requests import versions
from oracle.scenes import Ask

TOPIC, READ, ALLOW, ANY = 2, 3, 3, 1
SHA_256, SHA_512 = 1, 2
HMAC = b"of a token that nobody has"


class SecurityScenes:
    """Sends the same requests in every version."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    def all(self) -> None:
        self.acls()
        self.tokens()
        self.described()
        self.refusals()
        self.twice()
        self.several()
        self.logins()

    def acls(self) -> None:
        for version in versions("DescribeAcls"):
            wanted = describe_acls.Request(
                resource_type_filter=ANY,
                resource_name_filter=None,
                pattern_type_filter=ANY,
                principal_filter=None,
                host_filter=None,
                operation=ANY,
                permission_type=ANY,
            )
            self.ask("DescribeAcls", version, wanted, "all of them")
            one = create_acls.AclCreation(
                resource_type=TOPIC,
                resource_name="golden",
                principal="User:ann",
                host="*",
                operation=READ,
                permission_type=ALLOW,
            )
            for count in (0, 1, 2):
                self.ask("CreateAcls", version, create_acls.Request(creations=[one] * count), f"{count} of them")
            each = delete_acls.DeleteAclsFilter(
                resource_type_filter=TOPIC,
                resource_name_filter="golden",
                principal_filter=None,
                host_filter=None,
                operation=ANY,
                permission_type=ANY,
            )
            for count in (0, 1, 2):
                self.ask("DeleteAcls", version, delete_acls.Request(filters=[each] * count), f"{count} of them")

    def tokens(self) -> None:
        create, describe = create_delegation_token, describe_delegation_token
        for version in versions("CreateDelegationToken"):
            renewers = [create.CreatableRenewers(principal_type="User", principal_name="bob")]
            asked = create.Request(renewers=renewers, max_lifetime_ms=-1)
            self.ask("CreateDelegationToken", version, asked, "one's own")
            if version >= 3:
                asked = create.Request(owner_principal_type=None, owner_principal_name=None)
                self.ask("CreateDelegationToken", version, asked, "an owner that is null")
                asked = create.Request(owner_principal_type="User", owner_principal_name="ann")
                self.ask("CreateDelegationToken", version, asked, "another's")
        for version in versions("RenewDelegationToken"):
            request = renew_delegation_token.Request(hmac=HMAC, renew_period_ms=5)
            self.ask("RenewDelegationToken", version, request, "nobody's")
        for version in versions("ExpireDelegationToken"):
            gone = expire_delegation_token.Request(hmac=HMAC, expiry_time_period_ms=-1)
            self.ask("ExpireDelegationToken", version, gone, "nobody's")
        ann = describe.DescribeDelegationTokenOwner(principal_type="User", principal_name="ann")
        for version in versions("DescribeDelegationToken"):
            for note, owners in (("all", None), ("nobody's", []), ("ann's", [ann])):
                self.ask("DescribeDelegationToken", version, describe.Request(owners=owners), note)

    def described(self) -> None:
        self.describe("none are set, null", None)
        self.describe("none are set", [])
        self.describe("nobody", ["nobody"])
        self.describe("nobody, twice", ["nobody", "nobody"])
        self.alter("nothing")
        self.alter("set", upsertions=[_set("ann")])
        self.alter("the other mechanism", upsertions=[_set("ann", SHA_512, 16384)])
        self.alter("another user", upsertions=[_set("bob", SHA_512)])
        self.alter("set again", upsertions=[_set("bob", SHA_512, 5000)])
        self.describe("all, null", None)
        self.describe("all", [])
        self.describe("both", ["bob", "ann"])
        self.describe("one and nobody", ["nobody", "ann"])
        self.describe("one of them twice", ["ann", "bob", "ann"])

    def refusals(self) -> None:
        wrong = {
            "no name": _set(""),
            "no name and no mechanism": _set("", 0),
            "no mechanism": _set("carl", 0),
            "an unknown mechanism": _set("carl", 3),
            "a mechanism below zero": _set("carl", -1),
            "an unknown mechanism and too few iterations": _set("carl", 3, 1),
            "too few iterations": _set("carl", SHA_512, 4095),
            "no iterations": _set("carl", SHA_512, 0),
            "iterations below zero": _set("carl", SHA_512, -1),
            "too many iterations": _set("carl", SHA_256, 16385),
            "no password": _set("carl", salted_password=b""),
        }
        for note, upsertion in wrong.items():
            self.alter(note, upsertions=[upsertion])
        self.alter("no salt", upsertions=[_set("carl", salt=b"")])
        self.alter("the shortest password", upsertions=[_set("carl", salted_password=b"p")])
        self.describe("after the refusals", None)
        gone = {
            "an unknown user removed": ("nobody", SHA_256),
            "an unknown user removed, no mechanism": ("nobody", 0),
            "an unknown user removed, an unknown mechanism": ("nobody", 3),
            "no name removed": ("", SHA_256),
            "a missing mechanism removed": ("bob", SHA_256),
            "removed": ("carl", SHA_256),
            "removed again": ("carl", SHA_256),
        }
        for note, deletion in gone.items():
            self.alter(note, [deletion])

    def twice(self) -> None:
        self.alter("both mechanisms", upsertions=[_set("dora"), _set("dora", SHA_512)])
        self.alter("three times", upsertions=[_set("dora"), _set("dora", SHA_512), _set("dora")])
        self.alter("both mechanisms removed", [("ann", SHA_256), ("ann", SHA_512)])
        self.alter("removed and set", [("ann", SHA_256)], [_set("ann")])
        self.alter("one mechanism removed and the other set", [("ann", SHA_256)], [_set("ann", SHA_512)])
        self.alter("removed and set, but invalid", [("dora", SHA_256)], [_set("dora")])
        self.alter("invalid, then valid", upsertions=[_set("dora", 0), _set("dora")])
        self.alter("valid, then invalid", upsertions=[_set("dora"), _set("dora", 0)])
        self.describe("after all duplicates", None)

    def several(self) -> None:
        upsertions = [_set("emil"), _set("", 0), _set("fred", SHA_512), _set("gail", 0)]
        self.alter("some valid and some invalid", [("nobody", SHA_256), ("bob", SHA_512)], upsertions)
        self.describe("after some valid ones", None)
        self.alter("all removed", [("ann", SHA_256), ("emil", SHA_256), ("fred", SHA_512)])
        self.alter("the last one removed", [("ann", SHA_512)])
        self.describe("none are left", None)

    def logins(self) -> None:
        """Login requests on a listener without logins."""
        for version in versions("SaslHandshake"):
            for mechanism in ("PLAIN", ""):
                self.ask("SaslHandshake", version, sasl_handshake.Request(mechanism=mechanism), f"{mechanism!r}")
        for version in versions("SaslAuthenticate"):
            for token in (b"", b"\0ann\0secret"):
                self.ask("SaslAuthenticate", version, sasl_authenticate.Request(auth_bytes=token), f"{token!r}")

    def describe(self, note: str, users: list[str] | None) -> Any:
        rpc = describe_user_scram_credentials
        named = None if users is None else [rpc.UserName(name=user) for user in users]
        return self.ask("DescribeUserScramCredentials", 0, rpc.Request(users=named), note)

    def alter(self, note: str, deletions: Any = (), upsertions: Any = ()) -> Any:
        rpc = alter_user_scram_credentials
        gone = [rpc.ScramCredentialDeletion(name=user, mechanism=mechanism) for user, mechanism in deletions]
        request = rpc.Request(deletions=gone, upsertions=list(upsertions))
        told = self.ask("AlterUserScramCredentials", 0, request, note)
        if note:
            self.settle()
        return told

    def settle(self) -> None:
        """Wait until the broker has applied the controller's earlier decisions."""
        for is_there, deletions, upsertions in ((True, (), [_set("mark")]), (False, [("mark", SHA_256)], ())):
            self.alter("", deletions, upsertions)
            while (self.describe("", ["mark"]).results[0].error_code == 0) != is_there:
                pass


def _set(
    user: str,
    mechanism: int = SHA_256,
    iterations: int = 4096,
    salt: bytes = b"grains",
    salted_password: bytes = b"a password that is salted already",
) -> Any:
    return alter_user_scram_credentials.ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted_password
    )
