"""Parses the value of `sasl.jaas.config`: a Java login module and its options (KIP-85).

It is read as Apache Kafka's JaasConfig reads it, with Java's StreamTokenizer: comments begin with a slash, a word that
is not quoted has only letters, digits and `_-.$`, and begins with a letter, `_` or `$`.
Only Kafka's own modules are supported, and no Java class is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from kpybroker.errors import ConfigError

BLANK = re.compile(r"(?>[\0-\x20]|/\*.*?(?:\*/|\Z)|/[^\n\r]*)*+", re.DOTALL)
TOKEN = (
    r"""(?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote))[^\\\n\r])*)(?P=quote)|"""
    r"""(?P<word>[A-Za-z_$\xa0-\U0010ffff][A-Za-z0-9_.$\xa0-\U0010ffff-]*)|(?P<symbol>[=;])"""
)
"""Compiled when the first text is read, because that takes 4 ms, and most brokers have no logins."""
ESCAPE = re.compile(r"\\(?:([0-3][0-7]{2}|[0-7]{1,2})|(.))", re.DOTALL)
ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
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
    if symbols[:2] != "ww" or not words[0] or words[1].lower() not in FLAGS:
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
    token = re.compile(TOKEN, re.DOTALL)
    words, symbols, at = [], [], _begin(text, 0)
    while at < len(text):
        found = token.match(text, at)
        if found is None:
            raise ConfigError(
                f"{setting}: at character {at + 1}, a quotation mark is missing, or a value has to be quoted; {FORM}"
            )
        if found["symbol"] is None:
            words.append(found["word"] or ESCAPE.sub(_unescaped, found["quoted"]))
        symbols.append(found["symbol"] or "w")
        at = _begin(text, found.end())
    return words, "".join(symbols)


def _begin(text: str, at: int) -> int:
    """Where the next token begins."""
    blank = BLANK.match(text, at)
    assert blank is not None
    return blank.end()


def _unescaped(escape: re.Match[str]) -> str:
    octal, other = escape.groups()
    return chr(int(octal, 8)) if octal else ESCAPED.get(other, other)
