"""Runs a coroutine with a connection to a cluster, and turns exceptions into one line of text."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager

from kpybroker.client.client import Client, CommandFailed, NodeOutOfReach, parse_bootstrap
from kpybroker.client.dialer import client_dialer
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.world.real import real_world

TIMEOUT_MS = 15_000
"""The default timeout."""
NO_PROPERTIES: Mapping[str, str] = {}
HINTS = {
    ErrorCode.TOPIC_ALREADY_EXISTS: "--if-not-exists ignores existing topics",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader now; try again when its brokers are up",
    ErrorCode.REQUEST_TIMED_OUT: "allow more time with --timeout",
    ErrorCode.UNSUPPORTED_VERSION: "this broker is too old or too new for this command",
}


def run(
    scenario: Callable[[Client], Awaitable[None]],
    bootstrap: str,
    timeout_ms: int = TIMEOUT_MS,
    *,
    properties: Mapping[str, str] = NO_PROPERTIES,
    around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Connect to `bootstrap` (`host:port[,host:port...]`), await `scenario` within the context manager `around`, and
    disconnect.

    `properties` are security settings, named as in Apache Kafka's clients.

    Raises CommandFailed for error responses and lost connections, ConfigError for invalid addresses and properties.
    """
    addresses = parse_bootstrap(bootstrap)
    client = Client(client_dialer(real_world(), properties), addresses, timeout_ms)

    async def whole() -> None:
        with around():
            await client.start()
            with contextlib.closing(client):
                await scenario(client)

    try:
        asyncio.run(whole())
    except KafkaError as refusal:
        raise CommandFailed(refusal_text(refusal)) from refusal
    except TimeoutError as error:
        raise CommandFailed(
            f"the broker did not respond within {timeout_ms / 1000:g} s; allow more time with --timeout"
        ) from error
    except BrokenPipeError:
        raise  # our own stdout raises it after its reader has closed it
    except NodeOutOfReach as error:
        raise CommandFailed(f"{error}; is it running? `kpybroker status` shows the other nodes") from error
    except ConnectionError as error:
        raise CommandFailed(
            f"the connection broke: {error.strerror or error}; is the broker still running, and does the command "
            "log in if the listener has logins (--command-config)?"
        ) from error
    except OSError as error:
        raise CommandFailed(f"cannot continue: {error.strerror or error}") from error
    except MalformedFrame as error:
        raise CommandFailed(f"the broker's response cannot be parsed: {error}") from error


def refusal_text(refusal: KafkaError) -> str:
    """The text for an error response: the broker's message, and a remedy if one is known."""
    text = f"the broker refuses: {refusal.message} ({refusal.code.name})" if refusal.message else str(refusal.code.name)
    if refusal.code is ErrorCode.REQUEST_TIMED_OUT and refusal.message:
        return text  # the message names the cause, and a longer timeout would not help
    hint = HINTS.get(refusal.code)
    return f"{text}; {hint}" if hint is not None else text
