"""Values at and beyond the boundaries of a setting, made from its row of the tables."""

from __future__ import annotations

from kpybroker.config.key import Between, ConfigKey, Kind, OneOf

WHOLE = tuple(str(edge + by) for bits in (15, 31, 63) for edge in (-(1 << bits), 1 << bits) for by in (-1, 0, 1))
STRANGE = (
    *("", " ", "\t7 ", "\u00a07", "+7", "007", "1_0", "0x10", "1e3", "\u0661", "\u00b2", "9" * 5000, "abc", "\u20ac"),
    *("true", "TRUE", " false", "0", "-0", "-1", "1", "2", "nan", "NaN", "inf", "Infinity", "-Infinity"),
    *(
        "5e-324",
        "1e-9",
        "-5e-324",
        "1e308",
        "1e309",
        ".5",
        "5.",
        "1d",
        "a,b",
        ",",
        "*",
        "0:1",
        "\u00b2:1",
        "127.0.0.1:0",
    ),
    *("127.0.0.1:99999999999", "h:" + "9" * 5000, "[::1]:3", "PT1S", "by_duration:P1D", "client_id=(", "x" * 40_000),
    *("client_id=a{99999999999999999999}", "client_id=" + "(" * 3000 + ")" * 3000, "client_id=a.*"),
)


def values_of(key: ConfigKey) -> list[str]:
    """The values to try for a key: some values that are the same for every key, and the bounds of the key's own
    range."""
    near: list[str] = [] if key.default is None else [key.default]
    if isinstance(key.check, Between):
        for end in (key.check.low, key.check.high, key.check.also):
            if end is not None:
                near += [str(end - 1), str(end), str(end + 1)]
    elif isinstance(key.check, OneOf):
        near += [*key.check.words, ",".join(key.check.words[:2]), key.check.words[0].swapcase()]
    if key.kind is Kind.BOOLEAN:
        near += ["true", "false"]
    return list(dict.fromkeys((*near, *WHOLE, *STRANGE)))
