"""Parses `storage format --add-scram`: the SCRAM credentials of a new cluster (KIP-900).

The format is that of kafka-storage: MECHANISM=[name=...,password=...|saltedpassword=...,salt=...,iterations=...], where
salt and saltedpassword are base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from collections.abc import Iterable

from kpybroker.client.client import CommandFailed
from kpybroker.metadata.scram import record_of
from kpybroker.security.sasl.scram import MECHANISMS
from kpybroker.security.scram import DIGESTS, ITERATIONS_MAX, ITERATIONS_MIN, SALT_BITS, credential_of, salt_of
from kpybroker.wire.stored.metadata import UserScramCredentialRecord

FORM = re.compile(r"\s*([^=\s]+)\s*=\s*\[(.*)\]\s*", re.DOTALL)
FIELDS = ("name", "password", "saltedpassword", "salt", "iterations")
WAY_OUT = "write 'SCRAM-SHA-256=[name=alice,password=...]'"
CREDENTIALS_MAX = 1000


def scram_records(options: Iterable[str]) -> tuple[UserScramCredentialRecord, ...]:
    """The records of all options. Raises CommandFailed with a text that never contains a password."""
    records: dict[tuple[str, int], UserScramCredentialRecord] = {}
    for text in options:
        record = _record(text)
        if (record.name, record.mechanism) in records:
            raise CommandFailed(f"--add-scram: user {record.name} has the same mechanism twice; give it once")
        records[record.name, record.mechanism] = record
    if len(records) > CREDENTIALS_MAX:
        raise CommandFailed(f"--add-scram: {len(records)} credentials, at most {CREDENTIALS_MAX}")
    return tuple(records.values())


def _record(text: str) -> UserScramCredentialRecord:
    form = FORM.fullmatch(text)
    if form is None:
        raise CommandFailed(f"--add-scram: cannot read the option; {WAY_OUT}")
    if form[1] not in MECHANISMS:
        raise CommandFailed(f"--add-scram: there is no mechanism {form[1]}; known are {', '.join(MECHANISMS)}")
    mechanism, fields = MECHANISMS[form[1]], _fields(form[2])
    if not fields.get("name"):
        raise CommandFailed(f"--add-scram: the name is missing; {WAY_OUT}")
    if ("password" in fields) == ("saltedpassword" in fields):
        raise CommandFailed("--add-scram: give either password or saltedpassword")
    if "saltedpassword" in fields and "salt" not in fields:
        raise CommandFailed("--add-scram: saltedpassword needs the salt that it was derived with; add salt")
    iterations = _iterations(fields.get("iterations", str(ITERATIONS_MIN)))
    salt = _bytes("salt", fields["salt"]) if "salt" in fields else salt_of(secrets.randbits(SALT_BITS))
    if "password" in fields:
        salted = hashlib.pbkdf2_hmac(DIGESTS[mechanism], fields["password"].encode(), salt, iterations)
    else:
        salted = _bytes("saltedpassword", fields["saltedpassword"])
    return record_of(fields["name"], mechanism, credential_of(mechanism, salt, salted, iterations))


def _fields(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in FIELDS or name in found:
            raise CommandFailed(f"--add-scram: a field is not one of {', '.join(FIELDS)}, or is given twice; {WAY_OUT}")
        found[name] = value.strip('"')
    return found


def _iterations(text: str) -> int:
    if not text.isdecimal() or not ITERATIONS_MIN <= int(text[:9]) <= ITERATIONS_MAX:
        raise CommandFailed(f"--add-scram: iterations must be a number from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return int(text)


def _bytes(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise CommandFailed(f"--add-scram: {name} is not base64") from None
