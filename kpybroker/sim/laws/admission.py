"""Checks authentication and authorization: compares the result of each login and request with the granted rights.

Brokers lag behind. So a broker must enforce a removal only after it has returned the change in a response (`Shown`),
and only until its process ends, because its Image cannot go back during this time. Rights that were never granted must
be refused by all brokers.
"""

from __future__ import annotations

from typing import NamedTuple

from kpybroker.sim.world.history import History


class Shown(NamedTuple):
    """A change that a broker has returned in a response. `process` is the process that responded."""

    process: object


class Admission:
    """Records breaches. Each is a sentence that says which login or request had the wrong result, and why."""

    def __init__(self, history: History) -> None:
        self._history = history

    def got_in(self, login: str, *, because_not: str) -> None:
        """Record a breach: a login has succeeded that had to fail."""
        self._history.breach(f"{login} was let in, though {because_not}")

    def kept_out(self, login: str, *, shown: Shown, process: object, why: str) -> None:
        """Record a breach if a login has failed on a process that has shown the credential."""
        if shown.process is process:
            self._history.breach(f"{login} was refused by a broker that knows the credential: {why}")

    def login(
        self, login: str, refusal: str | None, *, shown: Shown, process: object, is_valid: bool, why: str
    ) -> None:
        """Check the response to a login, after the broker has shown whether the credential `is_valid`. `refusal`: the
        reason of a refusal, None if the login succeeded."""
        self._history.count("logins probed")
        if shown.process is not process or is_valid == (refusal is None):
            return
        if refusal is None:
            self.got_in(login, because_not=why)
        else:
            self.kept_out(login, shown=shown, process=process, why=refusal)

    def never(self, what: str, *, was_served: bool, why: str) -> None:
        """Check the response to a request that no broker may ever serve."""
        self._history.count("refusals probed")
        if was_served:
            self._history.breach(f"{what} was served, though {why}")

    def judged(self, what: str, *, shown: Shown, process: object, is_allowed: bool, was_denied: bool, ok: bool) -> None:
        """Check the response to a request, after the broker has shown whether the request `is_allowed`. `was_denied`:
        it returned an authorization error. `ok`: it served the request."""
        self._history.count("rights probed")
        if shown.process is not process:
            return
        if is_allowed and was_denied:
            self._history.breach(f"{what} was denied by a broker that knows the ACL which allows it")
        if not is_allowed and ok:
            self._history.breach(f"{what} was served by a broker that knows that it is not allowed")

    def session(self, who: str, *, sent_s: float, ended_s: float, was_served: bool) -> None:
        """Check a request that was sent in a session that ended no later than `ended_s`."""
        self._history.count("ended sessions probed")
        if was_served and sent_s > ended_s:
            self._history.breach(f"{who} was served {sent_s - ended_s:.3f} s after its session had ended")

    def own_rights(self, who: str, *, was_denied: bool) -> None:
        """Check a request that is denied only to sessions with tokens, after a session that began with a token was
        renewed with a password."""
        self._history.count("new logins probed")
        if was_denied:
            self._history.breach(f"{who} has logged in with a password, and was served as by its token before")

    def same_principal(self, who: str, other: str, *, was_let_in: bool) -> None:
        """Check the attempt of a client to renew a session as another principal."""
        self._history.count("changes of principal probed")
        if was_let_in:
            self._history.breach(f"the session of {who} was renewed as {other}")

    def topics(self, who: str, shown: set[str], allowed: set[str]) -> None:
        """Check the response to Metadata for all topics. It may contain only topics that this principal may
        describe."""
        self._history.count("metadata probed")
        if not shown <= allowed:
            self._history.breach(f"{who} was shown {sorted(shown - allowed)}, which it may not describe")
