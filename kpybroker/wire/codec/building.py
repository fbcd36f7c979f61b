"""Generates the function that builds a message from its layout; `lowering` explains why it is fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpybroker.wire.codec import primitives
from kpybroker.wire.codec.layout import Array, Blob, Fixed, Piece, Struct, Tagged, Text, layout
from kpybroker.wire.codec.lowering import Emitter, finish, has_view
from kpybroker.wire.codec.message import default_source

LARGE_BYTES = 4096
"""Records of at least this size are passed on without a copy. For smaller ones, a copy is cheaper than another
buffer."""


ELEMENTS_A_TURN = 500
"""The number of elements of a long response that are built in one turn."""


def lower_builder(cls: Any, version: int, in_turns: bool = False) -> Callable[[Any, list[Any], list[int]], Any]:
    """Return `builder(message, out, large)`, which appends the buffers to `out` and the indices of large records to
    `large`.

    in_turns: whether it is a generator that yields after every ELEMENTS_A_TURN elements.
    """
    tree = layout(cls, version)
    emitter = BuilderEmitter(
        {
            "ONE_BYTE": primitives.ONE_BYTE,
            "write_uvarint": primitives.write_uvarint,
            "write_text_length": primitives.write_text_length,
            "put_records": put_records,
        }
    )
    emitter.in_turns = in_turns
    if in_turns:
        emitter.line(f"turn = {ELEMENTS_A_TURN}")
        emitter.line("if False: yield")
    emitter.struct_fields(tree, "message")
    emitter.flush()
    return finish(emitter, "def lowered(message, out, large):", f"build {cls.__name__} v{version}")


def put_records(records: Any, out: list[Any], large: list[int]) -> None:
    """Append records in one or several pieces, and note the pieces that are large enough to stay separate buffers."""
    for each in records if isinstance(records, list) else (records,):
        if len(each) >= LARGE_BYTES:
            large.append(len(out))
        out.append(each)


def null_length(piece: Text | Blob | Array) -> tuple[str, str]:
    """The struct code and the source of the length that stands for null."""
    if piece.compact:
        return "x", ""
    return "h" if isinstance(piece, Text) else "i", "-1"


class BuilderEmitter(Emitter):
    """Emits statements that append buffers to `out`."""

    in_turns = False

    def __init__(self, namespace: dict[str, Any]) -> None:
        super().__init__(namespace)
        self.run: list[tuple[str, str]] = []
        """Fixed-width values that are not emitted yet."""

    def fixed(self, code: str, source: str) -> None:
        """Add a fixed-width value, or an array of such values. The code of an array begins with a star and the code of
        its count."""
        self.run.append((code, source))

    def block(self, head: str, *body: Callable[[], None]) -> None:
        self.line(head)
        self.indent()
        for emit in body:
            emit()
        self.dedent()

    def flush(self) -> None:
        if self.run:
            self.line(f"out.append({self.packed()})")
        self.run = []

    def packed(self) -> str:
        """The expression for the pending run of values."""
        codes = "".join(code for code, _ in self.run)
        if codes.strip("x") == "":
            return repr(bytes(len(codes)))
        pack = self.packers([code for code, _ in self.run]) if "*" in codes else self.struct(codes, "pack")
        return f"{pack}({', '.join(source for code, source in self.run if code != 'x')})"

    def packers(self, codes: list[str]) -> str:
        """The expression for the packer of a run with arrays, which depends on their sizes."""
        name = "packers_" + "_".join(codes).replace("*", "a").replace("?", "t")
        self.namespace.setdefault(name, primitives.Packers(tuple(codes)))
        sizes = [source.partition(",")[0].removesuffix(" + 1") for code, source in self.run if code[0] == "*"]
        return f"{name}[{', '.join(sizes)},]"

    def compact_length(self, size: str, write: str) -> None:
        """Emit a compact length together with the pending run. `write` is the name of the function for lengths above
        127."""
        if not self.run:
            self.line(f"out.append(ONE_BYTE[{size}] if {size} < 128 else {write}({size}))")
            return
        alone = self.packed()
        self.fixed("B", size)
        self.line(f"out.append({self.packed()} if {size} < 128 else {alone} + {write}({size}))")
        self.run = []

    def length(self, piece: Text | Blob | Array, size: str) -> None:
        if piece.compact:
            self.compact_length(size, "write_text_length" if isinstance(piece, Text) else "write_uvarint")
        else:
            self.fixed("h" if isinstance(piece, Text) else "i", size)
            self.flush()

    def piece(self, piece: Piece, source: str) -> None:
        if isinstance(piece, Fixed):
            self.fixed(piece.code, source)
        elif isinstance(piece, Text | Blob):
            self.blob(piece, source)
        elif isinstance(piece, Array):
            self.array(piece, source)
        elif piece.nullable:
            self.nullable_struct(piece, source)
        else:
            self.struct_fields(piece, source)

    def measured(self, piece: Text | Blob | Array, source: str, value: str, empty: str) -> str:
        """Emit `value` and its encoded length, including null, and return the name of the length."""
        size = self.temporary("n")
        plus_one = " + 1" * piece.compact
        if isinstance(piece, Text):
            source += ".encode()"
        if value != source:
            self.line(f"{value} = {source}")
        if piece.nullable:
            self.line(f"if {value} is None: {size} = {0 if piece.compact else -1}; {value} = {empty}")
            self.line("else:")
            self.indent()
        if isinstance(piece, Blob) and piece.view:
            self.line(f"{size} = (sum(map(len, {value})) if type({value}) is list else len({value})){plus_one}")
        else:
            self.line(f"{size} = len({value}){plus_one}")
        if piece.nullable:
            self.dedent()
        return size

    def blob(self, piece: Text | Blob, source: str) -> None:
        value = self.temporary("s")
        if piece.nullable and not (isinstance(piece, Blob) and piece.view):
            self.line(f"{value} = {source}")
            pending, self.run = self.run, [*self.run, null_length(piece)]
            self.block(f"if {value} is None:", self.flush)
            self.run = pending
            self.block("else:", lambda: self.blob(piece._replace(nullable=False), value))
            return
        size = self.measured(piece, source, value, 'b""')
        self.length(piece, size)
        if isinstance(piece, Blob) and piece.view:
            self.line(f"if {size} >= {LARGE_BYTES} or type({value}) is list: put_records({value}, out, large)")
            self.line(f"else: out.append({value})")
        else:
            self.line(f"out.append({value})")

    def array(self, piece: Array, source: str) -> None:
        if isinstance(piece.element, Fixed):
            self.fixed_array(piece, piece.element.code, source)
            return
        values, item = self.temporary("items"), self.temporary("item")
        size = self.measured(piece, source, values, "()")
        self.length(piece, size)
        start = len(self.lines)
        self.line(f"for {item} in {values}:")
        self.indent()
        if self.in_turns:
            self.line(f"turn -= 1\n{' ' * self.depth}if not turn: turn = {ELEMENTS_A_TURN}; yield")
        self.piece(piece.element, item)
        self.flush()
        self.dedent()
        if self.in_turns:
            return
        body = [line.strip() for line in self.lines[start + 1 :]]
        if not body:
            del self.lines[start:]
        elif len(body) == 1 and body[0].startswith("out.append("):  # a comprehension is faster than a loop
            del self.lines[start:]
            self.line(f"out += [{body[0].removeprefix('out.append(')[:-1]} for {item} in {values}]")

    def fixed_array(self, piece: Array, code: str, source: str) -> None:
        values, size = self.temporary("items"), self.temporary("n")
        self.line(f"{values} = {source}")
        if piece.nullable:
            pending, self.run = self.run, [*self.run, null_length(piece)]
            self.block(f"if {values} is None:", self.flush)
            self.run = pending
            self.block("else:", lambda: self.fixed_array(piece._replace(nullable=False), code, values), self.flush)
            return
        self.line(f"{size} = len({values})")
        head, plus_one = ("B", " + 1") if piece.compact else ("i", "")
        self.fixed(f"*{head}{code}", f"{size}{plus_one}, *{values}")

    def nullable_struct(self, piece: Struct, source: str, null: int = 255) -> None:
        self.flush()
        self.line(f"if {source} is None: out.append({bytes((null,))!r})")
        self.line("else:")
        self.indent()
        self.fixed("b", "1")
        self.struct_fields(piece, source)
        self.flush()
        self.dedent()

    def struct_fields(self, piece: Struct, source: str) -> None:
        """Emit the fields of the object in the variable `source`. The rest of the run stays pending."""
        if "." in source:
            made = self.temporary("o")
            self.line(f"{made} = {source}")
            source = made
        for name, member in piece.members:
            self.piece(member, f"{source}.{name}")
        if piece.tagged:
            self.tagged(piece.tagged, source)
        elif piece.tagged is not None:
            self.fixed("x", "")

    def tagged(self, tagged: tuple[Tagged, ...], source: str) -> None:
        """Emit the tagged fields. Most messages have none, so the emitted code is fastest in that case."""
        sent = []
        for each in tagged:
            assert not has_view(each.piece), "the size of a tagged field is known only after it is built"
            value, default = f"{source}.{each.name}", default_source(each.default, self.namespace)
            sent.append(f"{value} is not None" if each.default is None else f"{value} != {default}")
        pending, in_turns = self.run, self.in_turns
        self.in_turns = False  # a turn removes its bytes from `out`, and the mark would point past them
        self.line(f"if {' or '.join(sent)}:")
        self.indent()
        self.run = list(pending)
        self.flush()
        self.line(f"out.append(write_uvarint({' + '.join(f'({each})' for each in sent)}))")
        for each, condition in zip(tagged, sent, strict=True):
            mark = self.temporary("mark")
            self.line(f"if {condition}:")
            self.indent()
            self.line(f"{mark} = len(out)")
            if isinstance(each.piece, Struct) and each.piece.nullable:
                self.nullable_struct(each.piece, f"{source}.{each.name}", 0)
            else:
                self.piece(each.piece, f"{source}.{each.name}")
            self.flush()
            head = repr(primitives.write_uvarint(each.tag))
            self.line(f"out.insert({mark}, {head} + write_uvarint(sum(map(len, out[{mark}:]))))")
            self.dedent()
        self.dedent()
        self.line("else:")
        self.indent()
        self.run = [*pending, ("x", "")]
        self.flush()
        self.dedent()
        self.in_turns = in_turns
