"""Parses the value of `sasl.jaas.config`: a Java login module and its options (KIP-85).

Only Kafka's own modules are supported, and no Java class is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from kpybroker.errors import ConfigError

TOKEN = re.compile(r"""\s*(?:"((?:[^"\\\n]|\\.)*)"|([^\s"'=;]+)|([=;]))""", re.DOTALL)
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
FLAGS = ("required", "requisite", "sufficient", "optional")
FORM = 'write <class> required <option>="<value>" ... ;'
TEXT_MAX = 1 << 20
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER = "OAUTHBEARER"
OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
MODULES = {
    "PLAIN": PLAIN_MODULE,
    "SCRAM-SHA-256": SCRAM_MODULE,
    "SCRAM-SHA-512": SCRAM_MODULE,
    OAUTHBEARER: OAUTHBEARER_MODULE,
}
"""The login module of each mechanism that is served."""
USER_PREFIX = "user_"


class Jaas(NamedTuple):
    """A login module and its options. The options are secret."""

    module: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Jaas({self.module})"

    @property
    def users(self) -> dict[str, str]:
        """The passwords of `user_<name>` by name."""
        return {
            name.removeprefix(USER_PREFIX): password
            for name, password in self.options.items()
            if name.startswith(USER_PREFIX)
        }


def parse_jaas(setting: str, text: str) -> Jaas:
    """Parse one login module. Raises ConfigError without any part of the text in its message, because it is secret."""
    words, symbols = _tokens(setting, text)
    if not symbols.endswith(";") or ";" in symbols[:-1]:
        raise ConfigError(f"{setting}: it must have one login module and end with a semicolon; {FORM}")
    if symbols[:2] != "ww" or words[1].lower() not in FLAGS:
        raise ConfigError(f"{setting}: after the class there must be {FLAGS[0]}; {FORM}")
    if not re.fullmatch("ww(?:w=w)*;", symbols):
        raise ConfigError(f"{setting}: an option is not a name and a value; {FORM}")
    options = words[2:]
    return Jaas(words[0], dict(zip(options[::2], options[1::2], strict=True)))


def module_of(setting: str, text: str, mechanism: str) -> Jaas:
    """The login module in the text. Raises ConfigError if it is not the module of the mechanism."""
    jaas = parse_jaas(setting, text)
    if jaas.module != MODULES[mechanism]:
        raise ConfigError(
            f"{setting}: the login module of {mechanism} is {MODULES[mechanism]}; no other Java class is run here"
        )
    return jaas


def _tokens(setting: str, text: str) -> tuple[list[str], str]:
    """The words of the text, and a string with the kind of each token, in which `w` stands for a word."""
    if len(text) > TEXT_MAX:
        raise ConfigError(f"{setting}: longer than {TEXT_MAX} characters")
    words, symbols, at, text = [], "", 0, text.rstrip()
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:
            raise ConfigError(f"{setting}: a quotation mark is missing or misplaced; {FORM}")
        quoted, word, symbol = found.groups()
        if symbol is None:
            words.append(word if quoted is None else ESCAPE.sub(lambda each: ESCAPED.get(each[1], each[1]), quoted))
        symbols += symbol or "w"
        at = found.end()
    return words, symbols
