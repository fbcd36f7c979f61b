"""Declares messages as annotated classes.

    @part
    class Ask:
        partition: Int32 = 0
        current_leader_epoch: Int32 = field("2+", default=-1)

One declaration covers every version. If a version lacks a field, the parser sets the field's default, and the builder
leaves it out. `layout` determines the encoding of a class, and `codec` generates code for it on first use, so that the
import of a declaration takes very little time.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin

from kpybroker.wire.codec.primitives import ZERO_UUID

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Field(NamedTuple):
    """The declaration of a field, except for its type; see `field`."""

    versions: str
    default: Any
    tag: int | None
    nullable: str | None


UNSET: Any = object()


def field(versions: str = "0+", *, default: Any = UNSET, tag: int | None = None, nullable: str | None = None) -> Any:
    """Declare a field that is not the same in all versions, or has a default other than the zero value of its type.

    - versions: "3", "2-4" or "2+".
    - default: the default value.
    - tag: the number of a tagged field (KIP-482).
    - nullable: the versions in which the field may be null, if not all of them. The annotation then contains `| None`.

    A tagged structure has the default None, which means "not sent".
    """
    return Field(versions, default, tag, nullable)


class Structure:
    """The base of every declared class, with a constructor that takes keywords, comparison and a repr."""

    __slots__ = ()
    _declared: tuple[tuple[str, Any, Any], ...] = ()
    _versions = "0+"
    first_flexible: int | None = None
    _key: int | None = None
    lowered_parsers: dict[int, Callable[[Buffer, int], Any]]
    lowered_builders: dict[int, Callable[[Any, list[Any], list[int]], None]]
    lowered_others: dict[tuple[str, int], Any]
    """Other generated parsers and builders, by kind and version."""

    def __init__(self, **values: Any) -> None:
        made = make_init(type(self))  # on first use, as most classes are never built
        type.__setattr__(type(self), "__init__", made)
        made(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name, _, _ in self._declared)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name, _, _ in self._declared)
        return f"{type(self).__name__}({shown})"


def _seal(cls: type[T], facts: dict[str, Any]) -> type[T]:
    """Return the class with slots. It is created again, since class attributes with the defaults would conflict with
    slots."""
    declared = cls.__annotations__
    body = {name: value for name, value in vars(cls).items() if name not in declared}
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    body.update(
        facts,
        __slots__=tuple(declared),
        _declared=tuple((name, kind, vars(cls).get(name, UNSET)) for name, kind in declared.items()),
    )
    sealed: Any = type(cls.__name__, (Structure,), body)
    made: type[T] = sealed
    return made


@dataclass_transform(kw_only_default=True)
def part(cls: type[T]) -> type[T]:
    """Declare a structure that is used inside messages."""
    return _seal(cls, {})


@dataclass_transform(kw_only_default=True)
def message(versions: str, *, flexible: int | None = None, key: int | None = None) -> Callable[[type[T]], type[T]]:
    """Declare a whole message.

    - versions: the existing versions.
    - flexible: the first version with compact lengths and tagged fields, if there is one.
    - key: the number that identifies this type of record in a log, if the message is a stored record.
    """

    def seal(cls: type[T]) -> type[T]:
        facts = {"_versions": versions, "first_flexible": flexible, "_key": key}
        return _seal(cls, {**facts, "lowered_parsers": {}, "lowered_builders": {}, "lowered_others": {}})

    return seal


def key_of(cls: Any) -> Any:
    """The number that identifies this type of record in a log; None if the message has none."""
    return cls._key


def last_version(cls: Any) -> int:
    """The highest version of a message."""
    return int(cls._versions.rpartition("-")[2])


def fields_of(cls: Any) -> list[tuple[str, Any, Field]]:
    """The (name, annotation, field) of each field of a declared class. Missing defaults are filled in."""
    found = []
    for name, kind, declared in cls._declared:
        said = declared if isinstance(declared, Field) else Field("0+", declared, None, None)
        if said.default is UNSET:
            said = said._replace(default=None if said.tag is not None and is_part(kind) else _zero(kind))
        found.append((name, kind, said))
    return found


def without_none(kind: Any) -> tuple[Any, bool]:
    """The annotation without `| None`, as a class, a list or a struct code. Also returns whether it contained `|
    None`."""
    if hasattr(kind, "__metadata__"):
        return kind.__metadata__[0], kind.__metadata__[0] == "records"
    if get_origin(kind) in (Union, types.UnionType):
        (some,) = (each for each in get_args(kind) if each is not type(None))
        return without_none(some)[0], True
    return kind, False


def is_part(kind: Any) -> bool:
    """Whether an annotation is a declared class, or such a class with `| None`."""
    kind, _ = without_none(kind)
    return isinstance(kind, type) and issubclass(kind, Structure)


def _zero(kind: Any) -> Any:
    """The default of a field that declares none. A class stands for a new instance of this class."""
    kind, optional = without_none(kind)
    if optional:
        return None
    if get_origin(kind) is list:
        return []
    if isinstance(kind, type):
        return kind if is_part(kind) else kind()
    return {"16s": ZERO_UUID}.get(kind, 0)


def default_source(default: Any, namespace: dict[str, Any]) -> str:
    """An expression for a default. The objects that it needs are added to `namespace`."""
    if isinstance(default, type):
        namespace[default.__name__] = default
        return f"{default.__name__}()"
    if default == ZERO_UUID and isinstance(default, bytes):
        namespace["ZERO_UUID"] = ZERO_UUID
        return "ZERO_UUID"
    return repr(default)


def make_init(cls: Any) -> Callable[..., None]:
    """Create the constructor of the class, with a keyword and its default for each field."""
    namespace: dict[str, Any] = {"UNSET": UNSET}
    parameters, body = ["self"], []
    for name, _, said in fields_of(cls):
        source = default_source(said.default, namespace)
        if source.endswith(("]", "()")):  # a new object for each instance
            parameters.append(f"{name}=UNSET")
            body.append(f" self.{name} = {source} if {name} is UNSET else {name}")
        else:
            parameters.append(f"{name}={source}")
            body.append(f" self.{name} = {name}")
    if len(parameters) > 1:
        parameters.insert(1, "*")
    exec(f"def __init__({', '.join(parameters)}):\n" + "\n".join(body or [" pass"]), namespace)
    made: Callable[..., None] = namespace["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made
