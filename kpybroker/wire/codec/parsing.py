"""Generates the function that parses a message from its layout; `lowering` explains why it is fast and safe."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from enum import Enum
from typing import Any

from kpybroker.wire.codec import primitives
from kpybroker.wire.codec.layout import (
    Array,
    Blob,
    Fixed,
    Piece,
    Struct,
    Tagged,
    Text,
    is_request,
    layout,
)
from kpybroker.wire.codec.lowering import Emitter, finish, has_view, min_bytes
from kpybroker.wire.codec.message import default_source

COPY_BYTES = 16384
"""A frame with records is copied up to this size in order to read its other fields, because indexing bytes is faster
than indexing a view."""
ELEMENTS_MAX = 1_000_000
"""The most elements of a request, in all its arrays together and including tagged fields. Most APIs have a lower limit
in the Api table."""
ELEMENTS_AT_ONCE = 1000
"""A request with more elements than this is parsed in turns of about two milliseconds."""
ELEMENTS_A_TURN = 500
"""The number of structures or strings of a long request that are parsed in one turn."""


class Reading(Enum):
    """The mode of a parser: it reads a whole message, refuses a message of many elements, or reads it in turns."""

    WHOLE = "any message, to its end"
    AT_ONCE = "a request of at most ELEMENTS_AT_ONCE elements; raises ManyElements"
    IN_TURNS = "a generator that yields at intervals"


def lower_parser(
    cls: Any, version: int, *, prefix: bool = False, reading: Reading = Reading.WHOLE
) -> Callable[[Any, int], Any]:
    """Return `parser(view, pos)`, which returns the message. With `prefix`, it returns the message and the position
    after it, and more bytes may follow."""
    assert reading is not Reading.IN_TURNS, "that has another signature"
    tree = layout(cls, version)
    title = f"parse {cls.__name__} v{version}"
    if not has_view(tree):
        return _lower(tree, title, prefix, "data = bytes(view)", reading=reading)
    direct: Callable[[Any, int], Any] | None = None

    def large(view: Any, pos: int) -> Any:
        nonlocal direct
        if direct is None:
            direct = _lower(tree, f"{title}, large", prefix, "data = view = memoryview(view)", reading=reading)
        return direct(view, pos)

    opening = (
        f"if len(view) > {COPY_BYTES}: return large(view, pos)",
        "if type(view) is not memoryview: view = memoryview(view)",
        "data = bytes(view)",
    )
    return _lower(tree, title, prefix, *opening, large=large, reading=reading)


def lower_parser_in_turns(cls: Any, version: int) -> Callable[[bytes, int, int], Generator[None, None, Any]]:
    """Return `parser(frame, pos, most)`, a generator that yields after every ELEMENTS_A_TURN elements and returns the
    request, which may have `most` elements. The frame must not change, because records are views of it."""
    tree = layout(cls, version)
    opening = "data = view = memoryview(view)" if has_view(tree) else "data = bytes(view)"
    return _lower(tree, f"parse {cls.__name__} v{version}, in turns", False, opening, reading=Reading.IN_TURNS)


def _lower(
    tree: Struct, title: str, prefix: bool, *opening: str, large: Any = None, reading: Reading
) -> Callable[..., Any]:
    namespace = {
        "new": object.__new__,
        "refuse": primitives.refuse,
        "refuse_at_once": primitives.refuse_at_once,
        "read_uvarint": primitives.read_uvarint,
        "read_long_text": primitives.read_long_text,
        "skip_tagged": primitives.skip_tagged,
        "malformed": (IndexError, struct.error, UnicodeDecodeError),
        "large": large,
        "title": title,
    }
    emitter = ParserEmitter(namespace, "data = view" in opening[0], is_request(tree.cls), reading)
    for each in opening:
        emitter.line(each)
    emitter.line("try:")
    emitter.indent()
    emitter.line("limit = len(data)")
    if reading is Reading.IN_TURNS:
        emitter.line("room = most")
        emitter.line(f"turn = {ELEMENTS_A_TURN}")
        emitter.line("if False: yield")
    elif emitter.counted:
        emitter.line(f"room = {ELEMENTS_AT_ONCE if reading is Reading.AT_ONCE else ELEMENTS_MAX}")
    found = emitter.struct_fields(tree)
    emitter.flush()
    emitter.line("if pos > limit: refuse(f'{pos - limit} bytes missing')")
    if not prefix and not is_request(tree.cls):
        emitter.line("if pos < limit: refuse(f'{limit - pos} bytes left over')")
    emitter.line(f"return {found}, pos" if prefix else f"return {found}")
    emitter.dedent()
    emitter.line("except malformed as error: refuse(f'{title}: {error}')")
    return finish(emitter, f"def lowered(view, pos{', most' * (reading is Reading.IN_TURNS)}):", title)


class ParserEmitter(Emitter):
    """Emits statements that read at `pos` in `data`.

    `direct` means that `data` is a view of the frame instead of bytes. `counted` means that the elements are counted.
    """

    def __init__(self, namespace: dict[str, Any], direct: bool, counted: bool, reading: Reading) -> None:
        super().__init__(namespace)
        self.run: list[tuple[str, str]] = []
        """Fixed-width values that are not emitted yet."""
        self.direct = direct
        self.counted = counted
        self.reading = reading

    def count(self, size: str) -> None:
        """Emit code that subtracts elements from the number that a request may have."""
        if self.counted:
            self.line(f"room -= {size}")
            if self.reading is Reading.AT_ONCE:
                self.line("if room < 0: refuse_at_once()")
            else:
                most = "{most}" if self.reading is Reading.IN_TURNS else ELEMENTS_MAX
                self.line(f"if room < 0: refuse(f'more than {most} elements')")

    def fixed(self, code: str, target: str) -> None:
        self.run.append((code, target))

    def flush(self) -> None:
        run, self.run = self.run, []
        if not run:
            return
        codes = "".join(code for code, _ in run)
        size_bytes = struct.calcsize(">" + codes)
        if size_bytes == 1:
            value = {"B": "data[pos]", "?": "data[pos] != 0", "b": "(data[pos] ^ 128) - 128"}[codes]
            self.line(f"{run[0][1]} = {value}")
        else:
            unpack = self.struct(codes, "unpack_from")
            self.line(f"{', '.join(target for _, target in run)}{',' * (len(run) == 1)} = {unpack}(data, pos)")
        self.line(f"pos += {size_bytes}")

    def block(self, head: str, *body: str) -> None:
        self.line(head)
        self.lines.extend(" " * (self.depth + 1) + text for text in body)

    def piece(self, piece: Piece, target: str) -> None:
        if isinstance(piece, Fixed):
            self.fixed(piece.code, target)
        elif isinstance(piece, Text):
            self.text(piece, target)
        elif isinstance(piece, Blob):
            self.blob(piece, target)
        elif isinstance(piece, Array):
            self.array(piece, target)
        elif piece.nullable:
            self.nullable_struct(piece, target)
        else:
            self.line(f"{target} = {self.struct_fields(piece)}")

    def text(self, piece: Text, target: str) -> None:
        cut = "str(data[pos:stop], 'utf-8')" if self.direct else "data[pos:stop].decode()"
        size = self.temporary("n")
        self.fixed("B" if piece.compact else "h", size)
        self.flush()
        if not piece.compact:
            null = f"{target} = None" if piece.nullable else "refuse('null where a string is required')"
            self.block(f"if {size} >= 0:", f"stop = pos + {size}", f"{target} = {cut}", "pos = stop")
            self.block("else:", null)
            return
        if piece.nullable:
            self.block(f"if {size} == 0:", f"{target} = None")
        head = f"elif {size} < 128:" if piece.nullable else f"if 0 < {size} < 128:"
        self.block(head, f"stop = pos + {size} - 1", f"{target} = {cut}", "pos = stop")
        self.block("else:", f"{target}, pos = read_long_text(data, pos - 1, {piece.nullable})")

    def length(self, piece: Blob | Array) -> str:
        """Emit code that reads a length or count, and return its variable, which is -1 for null."""
        size = self.temporary("n")
        self.fixed("B" if piece.compact else "i", size)
        self.flush()
        if piece.compact:
            self.line(f"if {size} > 127: {size}, pos = read_uvarint(data, pos - 1)")
            self.line(f"{size} -= 1")
        return size

    def blob(self, piece: Blob, target: str) -> None:
        size = self.length(piece)
        source = "view" if piece.view else "data"
        cut = f"{source}[pos:pos + {size}]" if piece.view or not self.direct else f"bytes(data[pos:pos + {size}])"
        if piece.nullable:
            self.block(f"if {size} < 0:", f"{target} = None")
            self.block("else:", f"{target} = {cut}", f"pos += {size}")
        else:
            self.line(f"if {size} < 0: refuse('null where bytes are required')")
            self.line(f"{target} = {cut}")
            self.line(f"pos += {size}")

    def array(self, piece: Array, target: str) -> None:
        size = self.length(piece)
        # with elements of zero bytes, any count would be possible; so the count may not exceed the remaining bytes
        # either
        taken = f"{size} * {max(1, min_bytes(piece.element))}"
        misfit = f"{taken} > limit - pos" if piece.nullable else f"not 0 <= {taken} <= limit - pos"
        self.line(f"if {misfit}: refuse(f'{{{size}}} elements')")
        if piece.nullable:
            self.line(f"if {size} < 0: {target} = None")
            self.line("else:")
            self.indent()
        self.count(size)
        if isinstance(piece.element, Fixed):
            self.fixed_array(piece.element.code, size, target)
        else:
            items = self.temporary("items")
            self.line(f"{target} = {items} = []")
            self.line(f"for _ in range({size}):")
            self.indent()
            if self.reading is Reading.IN_TURNS:
                self.line("turn -= 1")
                self.block("if not turn:", f"turn = {ELEMENTS_A_TURN}", "yield")
            if isinstance(piece.element, Struct) and not piece.element.nullable:
                item = self.struct_fields(piece.element)
            else:
                item = self.temporary("item")
                self.piece(piece.element, item)
            self.flush()
            self.line(f"{items}.append({item})")
            self.dedent()
        if piece.nullable:
            self.dedent()

    def fixed_array(self, code: str, size: str, target: str) -> None:
        unpackers = f"unpackers_{code.replace('?', 't')}"
        self.namespace.setdefault(unpackers, primitives.Unpackers(code))
        self.line(f"{target} = list({unpackers}[{size}](data, pos))")
        self.line(f"pos += {size} * {struct.calcsize('>' + code)}")

    def nullable_struct(self, piece: Struct, target: str, null: str = "< 0") -> None:
        there = self.temporary("there")
        self.fixed("b", there)
        self.flush()
        self.line(f"if {there} {null}: {target} = None")
        self.line("else:")
        self.indent()
        found = self.struct_fields(piece)
        self.flush()
        self.line(f"{target} = {found}")
        self.dedent()

    def struct_fields(self, piece: Struct) -> str:
        """Emit code that creates and fills an object, and return its variable. The rest of the run stays pending."""
        made = self.temporary("o")
        self.line(f"{made} = new({self.name(piece.cls, piece.cls.__name__)})")
        defaults = [*piece.absent, *((each.name, each.default) for each in piece.tagged or ())]
        for name, default in defaults:
            self.line(f"{made}.{name} = {default_source(default, self.namespace)}")
        for name, member in piece.members:
            self.piece(member, f"{made}.{name}")
        if piece.tagged is not None:
            self.tagged(piece.tagged, made)
        return made

    def tagged(self, tagged: tuple[Tagged, ...], made: str) -> None:
        count, tag, stop = self.temporary("tags"), self.temporary("tag"), self.temporary("stop")
        self.fixed("B", count)
        self.flush()
        if not tagged:
            self.line(f"if {count}:")
            self.indent()
            self.count(count)
            self.line("pos = skip_tagged(data, pos - 1)")
            self.dedent()
            return
        self.line(f"if {count}:")
        self.indent()
        self.line(f"if {count} > 127: {count}, pos = read_uvarint(data, pos - 1)")
        self.count(count)
        self.line(f"for _ in range({count}):")
        self.indent()
        self.line(f"{tag}, pos = read_uvarint(data, pos)")
        self.line(f"{stop}, pos = read_uvarint(data, pos)")
        self.line(f"{stop} += pos")
        self.line(f"if {stop} > limit: refuse('a tagged field is longer than the frame')")
        for index, each in enumerate(tagged):
            self.line(f"{'elif' if index else 'if'} {tag} == {each.tag}:")
            self.indent()
            if isinstance(each.piece, Struct) and each.piece.nullable:
                self.nullable_struct(each.piece, f"{made}.{each.name}", "<= 0")
            else:
                self.piece(each.piece, f"{made}.{each.name}")
            self.flush()
            self.line(f"if pos != {stop}: refuse('the length of a tagged field is wrong')")
            self.dedent()
        self.line(f"else: pos = {stop}")
        self.dedent(2)
