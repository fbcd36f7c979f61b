"""Tests that the program starts on a Mac, which lacks some features of Linux."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from kpybroker.client.peer import Peer
from kpybroker.world.real import real_world
from tests.asking import get, make, put

WAIT_S = 60
LACKING = """
import fcntl, os, select, signal, socket, sys
for module, names in (
    (os, "fdatasync posix_fallocate posix_fadvise RWF_NOWAIT sched_getaffinity pidfd_open eventfd memfd_create pipe2"),
    (select, "epoll"),
    (socket, "TCP_QUICKACK TCP_USER_TIMEOUT SO_BINDTODEVICE AF_NETLINK"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.modules["uvloop"] = None
"""
A_MAC = (
    LACKING
    + """
import asyncio, subprocess  # chosen for the kernel that is really there
sys.platform = "darwin"
socket.SO_REUSEADDR = socket.SO_KEEPALIVE  # there nobody can listen where another socket is bound
fcntl.F_FULLFSYNC = 51
synced = asked = 0
kernels = fcntl.fcntl, os.fsync

def fsync(handle):
    global synced
    synced += 1
    kernels[1](handle)

def full_sync(handle, command, *more):
    global asked
    if command != fcntl.F_FULLFSYNC:
        return kernels[0](handle, command, *more)
    asked += 1
    kernels[1](handle)
    return 0

os.fsync, fcntl.fcntl = fsync, full_sync
import atexit
atexit.register(lambda: print(f"asked={asked} synced={synced}", file=sys.stderr))
"""
)
MAIN = "from kpybroker.__main__ import main\nmain()\n"


def on_a_mac(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", A_MAC + MAIN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def use(address: str) -> None:
    """Check that a client can write and read."""
    host, _, port = address.rpartition(":")
    peer = await Peer.dial(real_world().network, host, int(port))
    try:
        await peer.negotiate()
        await make(peer, "t")
        assert (await put(peer, "t", b"kept", acks=-1)).error_code == 0
        assert b"kept" in bytes((await get(peer, "t", 0)).records)
    finally:
        peer.close()


def served(process: subprocess.Popen[str], brokers: int = 1) -> str:
    """Use the broker and stop it. Returns its output on stderr."""
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("kpybroker ready bootstrap="), process.communicate(timeout=WAIT_S)[1]
        addresses = line.split()[2].partition("=")[2].split(",")
        assert len(addresses) == brokers
        if brokers == 1:
            asyncio.run(use(addresses[0]))
        process.send_signal(signal.SIGTERM)
        return process.communicate(timeout=WAIT_S)[1]
    finally:
        process.kill()
        process.wait()


def test_a_mac_syncs_to_the_device() -> None:
    """fsync on a Mac leaves the bytes in the device's cache; F_FULLFSYNC corresponds to fdatasync on Linux."""
    said = served(on_a_mac("dev", "--port", "0", "--ephemeral", "--set", "kpybroker.fsync=always"))
    asked = int(said.split("asked=")[1].split()[0])
    assert asked > 0
    assert said.endswith("synced=0\n")


@pytest.mark.slow
def test_several_brokers_start_although_bound_ports_block_each_other() -> None:
    served(on_a_mac("dev", "--brokers", "2", "--port", "0", "--ephemeral"), brokers=2)
