"""Access to the folder of an archive: a local folder, or one in any Hadoop file system through Spark's JVM."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from kpybroker.client.client import CommandFailed
from kpybroker.errors import ConfigError
from kpybroker.world.syncing import sync_directory_to_device, sync_to_device

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RENAMES_ONCE = ("hdfs", "viewfs", "webhdfs", "swebhdfs", "ofs", "o3fs", "abfs", "abfss")
"""File systems with an atomic rename that fails if the new name exists."""
CONDITIONAL = "fs.option.create.conditional.overwrite"
"""A capability and option of Hadoop 3.4.2 and later: the object store itself refuses to overwrite."""


class Store(Protocol):
    """A folder of an archive. Paths are relative to it, separated by /."""

    uri: str
    """The absolute URI for Spark, without a trailing /."""

    def names(self, folder: str) -> list[str]:
        """The names directly in a folder, without hidden files (.crc); empty if it does not exist."""

    def files(self, folder: str) -> dict[str, int]:
        """The size in bytes of every file at any depth, by path, without the files that Spark ignores."""

    def read(self, path: str) -> bytes: ...
    def create(self, path: str, data: bytes) -> bool:
        """Create the file with all its bytes atomically. Returns False, and changes nothing, if it exists."""

    def require_writable(self) -> None:
        """Raises OSError if it is known that nothing can be written."""

    def sync(self, folder: str) -> None:
        """Flush the files of a folder to the disk."""

    def delete(self, folder: str) -> None:
        """Delete a folder and its content, if it exists. Raises OSError."""


GLOB = "*?[]{}\\"
"""Characters that Spark interprets as patterns."""


def absolute(where: str) -> str:
    """The URI of a folder given as a path or URI, without percent escapes, as in Hadoop. Raises ConfigError."""
    if not where:
        raise ConfigError("the archive's folder is empty; give a path or a URI, such as s3a://bucket/orders")
    if set(where) & set(GLOB):
        raise ConfigError(f"{where!r} contains one of {GLOB}, which are patterns for Spark: name another folder")
    scheme = urlsplit(where).scheme
    if len(scheme) < 2 or scheme == "file":
        return f"file://{Path(_path_of(where)).resolve()}"
    return where.rstrip("/")


def _path_of(where: str) -> str:
    """The file path of an argument of the form path, file:/path or file:///path."""
    path = where.removeprefix("file:")
    return path.removeprefix("//") if path != where else where


def open_store(where: str, spark: Callable[[], SparkSession]) -> Store:
    """The folder at a URI, which need not exist. Calls `spark` only if it is not a local folder."""
    uri = absolute(where)
    return LocalStore(uri) if uri.startswith("file:") else HadoopStore(uri, spark())


class LocalStore:
    """A local folder. Creates files with hard links, because a rename in Hadoop's local file system replaces files."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._root = Path(_path_of(uri))

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in (self._root / folder).iterdir() if not path.name.startswith("."))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise ConfigError(f"{self.uri} is a file; the archive needs a folder") from None

    def files(self, folder: str) -> dict[str, int]:
        return {
            str(path.relative_to(self._root)): path.stat().st_size
            for path in sorted((self._root / folder).rglob("*"))
            if path.is_file() and not path.name.startswith((".", "_"))
        }

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def create(self, path: str, data: bytes) -> bool:
        final = self._root / path
        final.parent.mkdir(parents=True, exist_ok=True)
        written = final.parent / f".{uuid.uuid4().hex}"
        try:
            with written.open("xb") as file:
                file.write(data)
                file.flush()
                sync_to_device(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(written, final)
                sync_directory_to_device(str(final.parent))
                return True
            return False
        finally:
            written.unlink(missing_ok=True)

    def require_writable(self) -> None:
        """Create the folders, and check that they are writable. Raises OSError."""
        manifests = self._root / "_archive"
        manifests.mkdir(parents=True, exist_ok=True)
        if not os.access(manifests, os.W_OK):
            raise PermissionError(f"{manifests} is not writable")

    def sync(self, folder: str) -> None:
        for directory, _, files in os.walk(self._root / folder):
            for name in files:
                with (Path(directory) / name).open("rb") as file:
                    sync_to_device(file.fileno())
            sync_directory_to_device(directory)
            sync_directory_to_device(str(Path(directory).parent))

    def delete(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._root / folder)


class HadoopStore:
    """A folder in any file system that the session's Hadoop supports, accessed through the JVM."""

    def __init__(self, uri: str, spark: SparkSession) -> None:
        from py4j.protocol import Py4JJavaError

        self.uri = uri
        jvm: Any = spark._jvm
        self._path_class = jvm.org.apache.hadoop.fs.Path
        self._read_all = jvm.org.apache.commons.io.IOUtils.toByteArray
        self._java_error = Py4JJavaError
        self._scheme = urlsplit(uri).scheme
        self._root = self._path_class(uri)
        try:
            self._fs = self._root.getFileSystem(spark._jsc.hadoopConfiguration())
        except Py4JJavaError as error:
            raise CommandFailed(
                f"Spark cannot open {uri}: {first_line(error)}; are the jars of its file system installed?"
            ) from error

    def _path(self, path: str) -> Any:
        return self._path_class(self._root, path) if path else self._root

    def names(self, folder: str) -> list[str]:
        try:
            found = self._fs.listStatus(self._path(folder))
        except self._java_error as error:
            if "FileNotFoundException" in str(error.java_exception):
                return []
            raise CommandFailed(f"cannot list {self.uri}/{folder}: {first_line(error)}") from error
        names = (status.getPath().getName() for status in found)
        return sorted(name for name in names if not name.startswith("."))

    def files(self, folder: str) -> dict[str, int]:
        if not self._fs.exists(self._path(folder)):
            return {}
        found: dict[str, int] = {}
        start = len(self._fs.makeQualified(self._root).toString()) + 1
        left = self._fs.listFiles(self._path(folder), True)
        while left.hasNext():
            status = left.next()
            if not status.getPath().getName().startswith((".", "_")):
                found[status.getPath().toString()[start:]] = status.getLen()
        return found

    def read(self, path: str) -> bytes:
        stream = self._fs.open(self._path(path))
        try:
            return bytes(self._read_all(stream))
        finally:
            stream.close()

    def create(self, path: str, data: bytes) -> bool:
        final = self._path(path)
        if self._scheme in RENAMES_ONCE:
            written = self._path(f"{path.rpartition('/')[0]}/.{uuid.uuid4().hex}")
            stream = self._fs.create(written, False)
            stream.write(data)
            stream.hsync()
            stream.close()
            if not self._fs.rename(written, final):
                self._fs.delete(written, False)
            return self.read(path) == data
        try:
            builder = self._fs.createFile(final).overwrite(False).recursive()
            if self._fs.hasPathCapability(final, CONDITIONAL):
                builder = builder.must(CONDITIONAL, True)
            stream = builder.build()
            stream.write(data)
            stream.close()  # an object store creates the whole file at this point
        except self._java_error as error:
            # the file may be ours, if only the response was lost
            if self._fs.exists(final):
                return self.read(path) == data
            raise CommandFailed(f"cannot write {self.uri}/{path}: {first_line(error)}") from error
        return self.read(path) == data  # without a conditional request, another writer may have replaced it

    def require_writable(self) -> None:
        """Does nothing: the first write fails with a clear error."""

    def sync(self, folder: str) -> None:
        """Does nothing: in these file systems, a closed file is durable."""

    def delete(self, folder: str) -> None:
        self._fs.delete(self._path(folder), True)


def first_line(error: Any) -> str:
    """The message of a Java exception's root cause, without the stack trace."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString()).splitlines()[0]
