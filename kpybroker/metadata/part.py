"""What a part of the metadata is: the records of one kind of thing, what they change, and how a snapshot has them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

Value = TypeVar("Value")
Key = TypeVar("Key")
Item = TypeVar("Item")


class Part(NamedTuple, Generic[Value]):
    """A part is one entry of `PARTS` in `parts.py`: that makes it a part of the Image and of the controller's state.

    name: the attribute that has its value. empty: its value in an empty cluster. Values are compared by `==` and never
    changed: `Metadata.changing` gives a mapping that may be.
    changes: by class of record, what such a record does. It raises LookupError where the record is about what is not
    there.
    records: those that make a value out of the empty one, in the order of a snapshot.
    """

    name: str
    empty: Value
    changes: Mapping[type[Any], Callable[[Metadata, Any], None]]
    records: Callable[[Value], Iterable[Any]]

    def of(self, content: Any) -> Value:
        """The value that an Image, or the controller's state, has."""
        value: Value = getattr(content, self.name)
        return value


class Metadata(ABC):
    """The cluster's metadata while records change it: the next Image, or the controller's state."""

    __slots__ = ()

    @abstractmethod
    def changing(self, part: Part[Mapping[Key, Item]]) -> dict[Key, Item]:
        """The mapping of a part, to be written to. What is in it may be shared: replace it, do not change it."""

    @abstractmethod
    def put(self, part: Part[Value], value: Value) -> None:
        """Give a part that is no mapping another value."""

    @abstractmethod
    def add_topic(self, name: str, topic_id: bytes) -> None:
        """There is a new topic, without partitions."""

    @abstractmethod
    def remove_topic(self, name: str, topic_id: bytes) -> None:
        """A topic is gone, with its partitions. Raises KeyError."""

    @abstractmethod
    def partition_indices(self, topic: str) -> Sequence[int]:
        """Which partitions a topic has. Raises KeyError."""

    @abstractmethod
    def partition(self, topic: str, index: int) -> Any:
        """The PartitionImage of a partition. Raises KeyError."""

    @abstractmethod
    def put_partition(self, topic: str, index: int, partition: Any) -> None:
        """A partition is new, or has changed. Raises KeyError where there is no such topic."""

    @abstractmethod
    def settings_changed(self, resource: tuple[int, str]) -> None:
        """The settings of a resource (type, name) may be others now."""
