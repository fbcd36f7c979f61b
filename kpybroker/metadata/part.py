"""The definition of a part of the metadata: its records, their effect, and the records of a snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

Value = TypeVar("Value")
Key = TypeVar("Key")
Item = TypeVar("Item")


class Part(NamedTuple, Generic[Value]):
    """One entry of `PARTS` in `parts.py`, which adds the part to the Image and to the controller's state.

    - name: the attribute that has the value of the part.
    - empty: its value in an empty cluster. Values are compared by `==` and never changed; `Metadata.changing` returns a
      mapping that may be changed.
    - changes: for each class of record, a function that applies such a record. It raises LookupError if the record
      refers to something that does not exist.
    - records: yields the records that build a value from the empty one, in the order of a snapshot.
    """

    name: str
    empty: Value
    changes: Mapping[type[Any], Callable[[Metadata, Any], None]]
    records: Callable[[Value], Iterable[Any]]

    def of(self, content: Any) -> Value:
        """The value of this part in an Image, or in the controller's state."""
        value: Value = getattr(content, self.name)
        return value


class Metadata(ABC):
    """The cluster's metadata while records are applied to it: the next Image, or the controller's state."""

    __slots__ = ()

    @abstractmethod
    def changing(self, part: Part[Mapping[Key, Item]]) -> dict[Key, Item]:
        """The mapping of a part, which the caller may change. Its values may be shared: replace them, but do not change
        them."""

    @abstractmethod
    def put(self, part: Part[Value], value: Value) -> None:
        """Set the value of a part that is not a mapping."""

    @abstractmethod
    def add_topic(self, name: str, topic_id: bytes) -> None:
        """Add a topic without partitions."""

    @abstractmethod
    def remove_topic(self, name: str, topic_id: bytes) -> None:
        """Remove a topic and its partitions. Raises KeyError."""

    @abstractmethod
    def partition_indices(self, topic: str) -> Sequence[int]:
        """The partition indexes of a topic. Raises KeyError."""

    @abstractmethod
    def partition(self, topic: str, index: int) -> Any:
        """The PartitionImage of a partition. Raises KeyError."""

    @abstractmethod
    def put_partition(self, topic: str, index: int, partition: Any) -> None:
        """Add or replace a partition. Raises KeyError if the topic does not exist."""

    @abstractmethod
    def settings_changed(self, resource: tuple[int, str]) -> None:
        """Record that the settings of a resource (type, name) may have changed."""
