"""Reads Kafka's own message schemas from its jars, as the same simple trees as for kpybroker's layouts."""

from __future__ import annotations

import json
import keyword
import re
from functools import cache
from typing import Any
from zipfile import ZipFile

from kpybroker.wire.codec import layout as pieces
from kpybroker.wire.codec.layout import in_versions
from oracle.jars import KAFKA_VERSION, jars

JARS = ("clients", "metadata", "raft", "group-coordinator", "share-coordinator", "transaction-coordinator")
CODES = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "bool": "?",
    "float64": "d",
    "uuid": "16s",
}
RENAMED = {"RegisteredVoter": "Voter", "QuorumVoter": "Voter", "CurrentTaskIds": "TaskIds"}
"""The names in kpybroker for structures with a name that Kafka uses several times. If a structure of a response has the
same name as one of the request, its name in kpybroker ends in Reply."""

Schema = dict[str, Any]
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*')


@cache
def schemas() -> dict[str, Schema]:
    """All message schemas, by the name in the schema."""
    found = {}
    for jar in JARS:
        with ZipFile(jars() / f"kafka-{jar}-{KAFKA_VERSION}.jar") as archive:
            for path in archive.namelist():
                if path.startswith("common/") and path.endswith(".json"):
                    schema = json.loads(_COMMENT.sub(r"\1", archive.read(path).decode()))
                    found[schema["name"]] = schema
    return found


def snake(name: str) -> str:
    """The name in kpybroker for a field of Kafka."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return name + "_" * keyword.iskeyword(name)


class Reader:
    """One schema in one version, as a tree of tuples."""

    def __init__(self, schema: Schema, version: int) -> None:
        self.common = {each["name"]: each["fields"] for each in schema.get("commonStructs", [])}
        self.version = version
        self.flexible = in_versions(schema["flexibleVersions"], version)
        self.tree = self._struct(schema["name"], schema["fields"], nullable=False)

    def _struct(self, name: str, fields: list[Schema], nullable: bool) -> Any:
        members, tagged = [], []
        for field in fields:
            if not in_versions(field.get("versions") or field["taggedVersions"], self.version):
                continue
            row = (snake(field["name"]), self._field(field))
            if in_versions(field.get("taggedVersions", "none"), self.version):
                tagged.append((field["tag"], *row))
            else:
                members.append(row)
        return ("struct", name, members, sorted(tagged), self.flexible, nullable)

    def _field(self, field: Schema) -> Any:
        nullable = in_versions(field.get("nullableVersions", "none"), self.version)
        kind = field["type"]
        if kind.startswith("[]"):
            return ("array", self.flexible, nullable, self._type(kind[2:], field, nullable=False))
        return self._type(kind, field, nullable)

    def _type(self, kind: str, field: Schema, nullable: bool) -> Any:
        if kind in CODES:
            return ("fixed", CODES[kind])
        if kind in ("string", "bytes", "records"):
            return (kind, self.flexible, nullable)
        return self._struct(kind, self.common.get(kind) or field["fields"], nullable)


def described(piece: pieces.Piece) -> Any:
    """A layout of kpybroker as such a tree."""
    if isinstance(piece, pieces.Fixed):
        return ("fixed", piece.code)
    if isinstance(piece, pieces.Text):
        return ("string", piece.compact, piece.nullable)
    if isinstance(piece, pieces.Blob):
        return ("records" if piece.view else "bytes", piece.compact, piece.nullable)
    if isinstance(piece, pieces.Array):
        return ("array", piece.compact, piece.nullable, described(piece.element))
    name = RENAMED.get(piece.cls.__name__, piece.cls.__name__).removesuffix("Reply")
    members = [(each, described(member)) for each, member in piece.members]
    tagged = [(each.tag, each.name, described(each.piece)) for each in piece.tagged or ()]
    return ("struct", name, members, tagged, piece.tagged is not None, piece.nullable)


def default_of(field: Schema, ours: type | None) -> Any:
    """Kafka's default of a field. `ours` is the class of a structure in kpybroker, which stands for a new instance.

    Kafka's generator ignores a default of JSON's null, but not the string "null".
    """
    kind, default = field["type"], field.get("default", "")
    if default == "null":
        return None
    if kind.startswith("[]"):
        return []
    if kind == "bool":
        return default in ("true", True)
    if kind == "uuid":
        return bytes(16)
    if kind == "float64":
        return float(default or 0)
    if kind in CODES:
        return int(str(default or 0), 0)
    if kind == "string":
        return default
    if kind == "bytes":
        return b""
    return None if kind == "records" or ("tag" in field and "nullableVersions" not in field) else ours
