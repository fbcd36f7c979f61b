"""Who may get in and be served: each login and request of a principal is judged by the rights that were granted and
removed.

Brokers lag behind, so a broker must enforce a removal only once it has shown that it knows of the removal (`Shown`),
and until its process ends, as an Image does not go back during that time. Rights that were never granted are refused
everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

from kpybroker.sim.world.history import History


class Shown(NamedTuple):
    """A broker has shown in an answer that it knows of a change; `process` is the process that answered."""

    process: object


class Admission:
    """Records breaches: sentences about who got in, or was served, and why that must not happen."""

    def __init__(self, history: History) -> None:
        self._history = history

    def got_in(self, login: str, *, because_not: str) -> None:
        """A login has succeeded; record a breach, as it had to fail."""
        self._history.breach(f"{login} was let in, though {because_not}")

    def kept_out(self, login: str, *, shown: Shown, process: object, why: str) -> None:
        """A login has failed, although the broker has shown that it knows the credential."""
        if shown.process is process:
            self._history.breach(f"{login} was refused by a broker that knows the credential: {why}")

    def login(
        self, login: str, refusal: str | None, *, shown: Shown, process: object, is_valid: bool, why: str
    ) -> None:
        """A broker has answered a login, after it showed that it knows whether the credential `is_valid`; `refusal` is
        its reason, None if it let the client in."""
        self._history.count("logins probed")
        if shown.process is not process or is_valid == (refusal is None):
            return
        if refusal is None:
            self.got_in(login, because_not=why)
        else:
            self.kept_out(login, shown=shown, process=process, why=refusal)

    def never(self, what: str, *, was_served: bool, why: str) -> None:
        """A request was answered that no broker may ever serve."""
        self._history.count("refusals probed")
        if was_served:
            self._history.breach(f"{what} was served, though {why}")

    def judged(self, what: str, *, shown: Shown, process: object, is_allowed: bool, was_denied: bool, ok: bool) -> None:
        """A broker has answered a request, after it showed that it knows whether the request `is_allowed`.
        `was_denied`: it returned an authorization error; `ok`: it served the request."""
        self._history.count("rights probed")
        if shown.process is not process:
            return
        if is_allowed and was_denied:
            self._history.breach(f"{what} was denied by a broker that knows the ACL which allows it")
        if not is_allowed and ok:
            self._history.breach(f"{what} was served by a broker that knows that it is not allowed")

    def session(self, who: str, *, sent_s: float, ended_s: float, was_served: bool) -> None:
        """A request was sent in a session that ended no later than `ended_s`."""
        self._history.count("ended sessions probed")
        if was_served and sent_s > ended_s:
            self._history.breach(f"{who} was served {sent_s - ended_s:.3f} s after its session had ended")

    def own_rights(self, who: str, *, was_denied: bool) -> None:
        """A session that began with a token was renewed with a password, and then a request was made that only sessions
        with tokens are denied."""
        self._history.count("new logins probed")
        if was_denied:
            self._history.breach(f"{who} has logged in with a password, and was served as by its token before")

    def same_principal(self, who: str, other: str, *, was_let_in: bool) -> None:
        """A client has tried to renew a session as another principal."""
        self._history.count("changes of principal probed")
        if was_let_in:
            self._history.breach(f"the session of {who} was renewed as {other}")

    def topics(self, who: str, shown: set[str], allowed: set[str]) -> None:
        """Metadata of all topics was answered; it may contain only topics that this principal may describe."""
        self._history.count("metadata probed")
        if not shown <= allowed:
            self._history.breach(f"{who} was shown {sorted(shown - allowed)}, which it may not describe")
