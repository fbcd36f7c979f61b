"""Slow disks: a preloaded library (LD_PRELOAD) delays writes while a control file exists.

Writes and syncs below the node's data directory wait for the number of milliseconds in that file. The run compiles the
library; without a C compiler there are no slow disks, which the run reports.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

typedef const struct iovec *Parts;

static void wait_for_disk(int file) {
    const char *below = getenv("SLOW_BELOW"), *says = getenv("SLOW_WHILE");
    char link[64], path[4096], text[16];
    if (!below || !says) return;
    int asked = open(says, O_RDONLY | O_CLOEXEC);
    if (asked < 0) return;
    ssize_t size = pread(asked, text, sizeof text - 1, 0);
    close(asked);
    if (size <= 0) return;
    text[size] = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    if (strncmp(path, below, strlen(below))) return;
    long ms = atol(text);
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, 0);
}

#define BETWEEN(result, name, declared, ...) \
    result name declared { \
        static result (*real) declared; \
        if (!real) real = (result (*) declared) dlsym(RTLD_NEXT, #name); \
        wait_for_disk(file); \
        return real(__VA_ARGS__); \
    }
BETWEEN(ssize_t, write, (int file, const void *data, size_t size), file, data, size)
BETWEEN(ssize_t, pwrite, (int file, const void *data, size_t size, off_t at), file, data, size, at)
BETWEEN(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t at), file, data, size, at)
BETWEEN(ssize_t, pwritev, (int file, Parts parts, int count, off_t at), file, parts, count, at)
BETWEEN(ssize_t, pwritev64, (int file, Parts parts, int count, off64_t at), file, parts, count, at)
BETWEEN(ssize_t, pwritev2, (int file, Parts parts, int count, off_t at, int how), file, parts, count, at, how)
BETWEEN(ssize_t, pwritev64v2, (int file, Parts parts, int count, off64_t at, int how), file, parts, count, at, how)
BETWEEN(int, fsync, (int file), file)
BETWEEN(int, fdatasync, (int file), file)
"""


class SlowDisks:
    """The disks of the nodes, by node id. `slow_down` and `let_go` take effect while the node runs."""

    def __init__(self, directory: Path) -> None:
        """directory: for the library and the control files."""
        self._directory = directory
        self._library = directory / "slow_disks.so"
        compiler = shutil.which("cc") or shutil.which("gcc")
        self.is_available = compiler is not None and self._build(compiler)

    def _build(self, compiler: str) -> bool:
        source = self._directory / "slow_disks.c"
        source.write_text(SOURCE)
        flags = ["-shared", "-fPIC", "-O1", "-o", str(self._library), str(source), "-ldl"]
        return subprocess.run([compiler, *flags], check=False, capture_output=True).returncode == 0

    def _says(self, node_id: int) -> Path:
        return self._directory / f"slow-{node_id}"

    def environment(self, node_id: int, data: Path) -> dict[str, str]:
        """Environment variables for a node, so that its disk can be slowed down."""
        if not self.is_available:
            return {}
        return {"LD_PRELOAD": str(self._library), "SLOW_BELOW": str(data), "SLOW_WHILE": str(self._says(node_id))}

    def slow_down(self, node_id: int, ms: int) -> None:
        """From now on each write and each sync takes `ms` milliseconds longer."""
        self._says(node_id).write_text(str(ms))

    def let_go(self, node_id: int) -> None:
        """From now on the disk has its normal speed again."""
        self._says(node_id).unlink(missing_ok=True)
