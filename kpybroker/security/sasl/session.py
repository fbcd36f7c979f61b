"""Handles the login of one connection: the order of its frames, and the responses (KIP-43, KIP-152, KIP-368).

A client may first send one ApiVersions. It then sends a SaslHandshake that names the mechanism, and then its tokens, in
SaslAuthenticate requests or, after the SaslHandshake v0 of older clients, without a header. The session parses and
builds frames without their size; it sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from struct import pack
from typing import Any, NamedTuple

from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.security.principal import ANONYMOUS, Principal
from kpybroker.security.sasl.exchange import Exchange, LoginRefused, Mechanism, Preparation
from kpybroker.wire.api import API_VERSIONS, Api, by_key, by_name
from kpybroker.wire.codec.codec import parser_at_once
from kpybroker.wire.codec.primitives import ManyElements
from kpybroker.wire.frame import encode_response, parse_request_header
from kpybroker.wire.rpc import api_versions, sasl_authenticate, sasl_handshake

HANDSHAKE, AUTHENTICATE = by_name["SaslHandshake"], by_name["SaslAuthenticate"]
AGAIN_AFTER_MS = 1000
"""The shortest time between the beginnings of two re-authentications."""
Buffers = list[bytes | memoryview]
Refuse = Callable[[Api, Any, KafkaError], Any]
"""Builds the response that refuses a request. Raises MalformedFrame if the API has no such response."""


class Stage(Enum):
    """The stage of a login."""

    FIRST = "first"
    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    COMPLETE = "complete"
    FAILED = "failed"


class Verdict(NamedTuple):
    """The decision on a frame. `passes`: the dispatcher handles the frame. `failure`: the reason why the login failed;
    the response is sent after a delay, and then the connection is closed. `preparation`: work to run before the same
    frame is passed again."""

    answer: Buffers = []
    passes: bool = False
    failure: str | None = None
    preparation: Preparation | None = None


PASSES = Verdict(passes=True)


class LoginSession:
    """The state of one connection. `mechanisms` has the mechanisms of the listener, in order. `now_ms` returns a time
    that never goes backward."""

    def __init__(self, mechanisms: Mapping[str, Mechanism], refuse: Refuse, now_ms: Callable[[], int]) -> None:
        self._mechanisms = mechanisms
        self._refuse = refuse
        self._now_ms = now_ms
        self.stage = Stage.FIRST
        self.principal = ANONYMOUS
        """The principal that has logged in; during a re-authentication, that of the previous login."""
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._bare = False
        self._logged_in_with: str | None = None
        self._began_again_ms: int | None = None
        self._lifetime_ms = 0
        """The lifetime of the last login; 0 means no limit."""
        self.ends_ms: int | None = None
        """The time at which the session ends unless it is renewed; None if it has no end."""

    @property
    def takes_bare_tokens(self) -> bool:
        """Whether the next frame is a token without a header."""
        return self._bare and self.stage is Stage.AUTHENTICATE

    @property
    def has_logged_in(self) -> bool:
        """Whether a login has ever succeeded on this connection."""
        return self._logged_in_with is not None

    @property
    def is_settled(self) -> bool:
        """Whether the dispatcher handles all later frames."""
        return self.stage is Stage.COMPLETE and self.ends_ms is None

    def take(self, frame: memoryview, *, prepared: bool = False) -> Verdict:
        """Handle the next frame, or, after a preparation, the same frame again. Raises MalformedFrame if the connection
        must be closed at once, without a response."""
        stage = self.stage
        if stage is Stage.COMPLETE:
            return self._during_session(frame)
        if stage is Stage.FAILED:
            raise MalformedFrame("a frame after a failed login")
        self.stage = Stage.FAILED  # replaced below if the frame is valid
        if stage is Stage.AUTHENTICATE:
            return (self._bare_token if self._bare else self._token)(frame, prepared=prepared)
        return self._before_tokens(frame, stage)

    def _before_tokens(self, frame: memoryview, stage: Stage) -> Verdict:
        header, body_at = parse_request_header(frame)
        version = header.api_version
        if header.api_key == HANDSHAKE.key:
            return self._handshake(frame, version, header.correlation_id, body_at)
        if header.api_key != API_VERSIONS.key:
            name = _name(header.api_key)
            raise MalformedFrame(
                f"{name} came before a login; set security.protocol, sasl.mechanism and sasl.jaas.config in the client"
            )
        if stage is not Stage.FIRST:
            raise MalformedFrame("a second ApiVersions came before the login")
        self.stage = Stage.FIRST
        if API_VERSIONS.min <= version <= API_VERSIONS.max:
            asked = _parsed(API_VERSIONS, version, frame, body_at)
            if version < api_versions.SOFTWARE_FROM or api_versions.has_valid_software(asked):
                self.stage = Stage.HANDSHAKE
        return PASSES

    def _handshake(self, frame: memoryview, version: int, correlation_id: int, body_at: int) -> Verdict:
        _check_version(HANDSHAKE, version)
        wanted = _parsed(HANDSHAKE, version, frame, body_at).mechanism
        offered = list(self._mechanisms)
        if wanted not in self._mechanisms:
            told = sasl_handshake.Response(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
            why = f"mechanism {wanted[:40]!r} is not enabled; set sasl.mechanism to one of {', '.join(offered)}"
            return Verdict(encode_response(correlation_id, HANDSHAKE, version, told), failure=why)
        self._mechanism, self._bare = wanted, version == 0
        is_another = self._logged_in_with is not None and wanted != self._logged_in_with
        self._exchange = None if is_another else self._mechanisms[wanted].begin()
        self.stage = Stage.AUTHENTICATE
        response = sasl_handshake.Response(mechanisms=offered)
        return Verdict(encode_response(correlation_id, HANDSHAKE, version, response))

    def _token(self, frame: memoryview, *, prepared: bool) -> Verdict:
        header, body_at = parse_request_header(frame)
        version = header.api_version
        api = by_key.get(header.api_key)
        if api is None:
            raise MalformedFrame(f"{_name(header.api_key)} came during a login")
        _check_version(api, version)
        asked = _parsed(api, version, frame, body_at)
        if api is not AUTHENTICATE:
            text = f"Unexpected Kafka request of type {api.name} during SASL authentication."
            told = self._refuse(api, asked, KafkaError(ErrorCode.ILLEGAL_SASL_STATE, text))
            return Verdict(encode_response(header.correlation_id, api, version, told), failure=text)
        try:
            token = self._step(bytes(asked.auth_bytes), prepared=prepared)
        except LoginRefused as refused:
            told = sasl_authenticate.Response(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=refused.told or self._shared_text
            )
            return Verdict(encode_response(header.correlation_id, api, version, told), failure=self._why(refused))
        if not isinstance(token, bytes):
            return Verdict(preparation=token)
        response = sasl_authenticate.Response(auth_bytes=token)
        if self.stage is Stage.COMPLETE and self.ends_ms is not None:
            response.session_lifetime_ms = self._lifetime_ms
        return Verdict(encode_response(header.correlation_id, api, version, response))

    def _bare_token(self, frame: memoryview, *, prepared: bool) -> Verdict:
        try:
            token = self._step(bytes(frame), prepared=prepared)
        except LoginRefused as refused:
            return Verdict(failure=self._why(refused))
        if not isinstance(token, bytes):
            return Verdict(preparation=token)
        return Verdict([pack(">i", len(token)) + token])

    def _step(self, token: bytes, *, prepared: bool) -> bytes | Preparation:
        """The server's token in response to a token, or the preparation that it needs. The last token completes the
        login. Raises LoginRefused, MalformedFrame."""
        if self._exchange is None:
            raise MalformedFrame(f"re-authentication with {self._mechanism}, after a login with {self._logged_in_with}")
        preparation = None if prepared else self._exchange.preparation(token)
        answer = self._exchange.step(token) if preparation is None else preparation
        self.stage = Stage.AUTHENTICATE
        if self._exchange.principal is not None:
            self._complete(self._exchange.principal, self._exchange.lifetime_ms)
        return answer

    def _complete(self, principal: Principal, valid_ms: int | None) -> None:
        self.stage = Stage.FAILED
        if self._logged_in_with is not None and principal != self.principal:
            before = self.principal
            text = (
                f"Cannot change principals during re-authentication from {before.type}.{before.name}: "
                f"{principal.type}.{principal.name}"
            )
            raise LoginRefused(text, text)
        at_most_ms = self._mechanisms[self._mechanism].lifetime_ms
        lifetimes_ms = [at_most_ms] if at_most_ms > 0 else []
        lifetimes_ms += [] if valid_ms is None else [valid_ms]
        self._lifetime_ms = min(lifetimes_ms, default=0)
        self.principal, self._logged_in_with, self._exchange = principal, self._mechanism, None
        self.ends_ms = self._now_ms() + self._lifetime_ms if lifetimes_ms else None
        self.stage = Stage.COMPLETE

    def _during_session(self, frame: memoryview) -> Verdict:
        """Handle a frame after a login. If the session has an end, a SaslHandshake renews it; after the end, no other
        frame is accepted."""
        now_ms = self._now_ms()
        key = int.from_bytes(frame[:2], "big")
        is_soon = self._began_again_ms is not None and now_ms - self._began_again_ms < AGAIN_AFTER_MS
        if key == HANDSHAKE.key and self.ends_ms is not None and not is_soon:
            self._began_again_ms = now_ms
            self.stage = Stage.FAILED
            return self._before_tokens(frame, Stage.HANDSHAKE)
        if self.ends_ms is not None and now_ms > self.ends_ms:
            self.stage = Stage.FAILED
            raise MalformedFrame(f"the session of {self.principal} has ended, and the client did not renew it")
        return PASSES

    @property
    def _shared_text(self) -> str:
        """The error message that the client receives instead of the reason."""
        during = "authentication" if self._logged_in_with is None else "re-authentication"
        return f"Authentication failed during {during} due to invalid credentials with SASL mechanism {self._mechanism}"

    def _why(self, refused: LoginRefused) -> str:
        return f"login with {self._mechanism} failed: {refused}"


def _parsed(api: Api, version: int, frame: memoryview, body_at: int) -> Any:
    try:
        return parser_at_once(api.request, version)(frame, body_at)
    except ManyElements:
        raise MalformedFrame(f"{api.name} v{version} with many elements came during a login") from None


def _check_version(api: Api, version: int) -> None:
    if not api.min <= version <= api.max:
        raise MalformedFrame(f"{api.name} is served in versions {api.min} to {api.max}, not in {version}")


def _name(key: int) -> str:
    api = by_key.get(key)
    return f"a request with api key {key}" if api is None else api.name
