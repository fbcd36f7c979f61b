"""Changes ACLs and SCRAM credentials one after the other, and finds out from every node which changes it has applied.

Each register has a separate SCRAM user, its mark. After each change, the credential of the mark is stored again, with
the number of the change (above the minimum) as its iteration count. Every node returns that count in
DescribeUserScramCredentials. Changes and marks are records of one log, so a node that has applied the mark has also
applied the change.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from chaos.history import History
from chaos.registers import Register
from kpybroker.security.scram import ITERATIONS_MAX, ITERATIONS_MIN
from kpybroker.wire.rpc import describe_user_scram_credentials as describe_users
from oracle.administration import Acl, Refused, create, set_password
from oracle.asking import Conversation
from oracle.cluster import Cluster
from oracle.secured import Secured

MARKS = ("mark-of-rights", "mark-of-passwords")
CHANGES_MAX = ITERATIONS_MAX - ITERATIONS_MIN
TIMEOUT_S = 5.0
AGAIN_S = 0.2
POLL_S = 0.1
LATE_S = 40.0
"""A request that received no response may still be executed for this long: links are silent and nodes are suspended for
up to 8 s."""


Work = Callable[[Conversation], None]


class Changes(threading.Thread):
    """Makes the requested changes in order, and retries each until a node confirms it."""

    def __init__(self, history: History, cluster: Cluster, secured: Secured) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._secured = secured
        self._registers = {MARKS[0]: history.rights, MARKS[1]: history.passwords}
        self._wanted = True
        self._told: queue.Queue[Callable[[], None]] = queue.Queue()
        self._unfinished = 0
        self._nodes: dict[int, Conversation] = {}
        self.made = 0
        """How many changes of registers are made."""

    def prepare(self, acls: Iterable[Acl], users: Iterable[str]) -> None:
        """Create the ACLs, the users and the marks; the password of each is its name. Call this before the thread is
        started."""
        self._until_made(lambda node: create(node, acls))
        for user in (*users, *MARKS):
            self._until_made(lambda node, user=user: set_password(node, user, user))  # type: ignore[misc]

    @property
    def is_idle(self) -> bool:
        """Whether all requested changes have been made."""
        return not self._unfinished

    def tell(self, register: Register, value: str, work: Work) -> None:
        """Change a register to this value with `work`, which must be safe to repeat."""
        self._put(lambda: self._change(register, value, work))

    def do(self, work: Work) -> None:
        """Make a change that no register tracks."""
        self._put(lambda: self._until_made(work) and None)

    def hold(self, for_s: float) -> None:
        """Make no changes for this long."""
        self._put(lambda: self._wait_until(time.monotonic() + for_s))

    def _put(self, job: Callable[[], None]) -> None:
        self._unfinished += 1
        self._told.put(job)

    def run(self) -> None:
        while self._wanted:
            with contextlib.suppress(queue.Empty):
                job = self._told.get(timeout=POLL_S)
                job()
                self._unfinished -= 1
            self._look()

    def _change(self, register: Register, value: str, work: Work) -> None:
        if len(register.changes) > CHANGES_MAX:
            return
        number = register.change(time.monotonic(), value)
        mark = next(name for name, one in self._registers.items() if one is register)
        settled_s = self._until_made(work)
        self._until_made(lambda node: set_password(node, mark, mark, ITERATIONS_MIN + number))
        self.made += 1
        self._wait_until(settled_s)

    def _wait_until(self, end_s: float) -> None:
        while self._wanted and time.monotonic() < end_s:
            self._look()
            time.sleep(POLL_S)

    def _until_made(self, work: Work) -> float:
        """Repeat the work until a node confirms it. Returns the time after which no earlier attempt can still be
        executed."""
        settled_s = 0.0
        while self._wanted:
            controller = self._cluster.nodes.get(self._cluster.active_controller())
            candidates = self._cluster.brokers if controller not in self._cluster.brokers else [controller]
            for broker in candidates:
                try:
                    node = Conversation(broker.address, TIMEOUT_S, self._secured.door())
                except OSError:
                    continue
                try:
                    with contextlib.closing(node):
                        work(node)
                        return settled_s
                except (OSError, Refused):
                    settled_s = time.monotonic() + LATE_S
            time.sleep(AGAIN_S)
        return settled_s

    def _look(self) -> None:
        """Request from every node the changes that it has applied."""
        request = describe_users.Request(users=[describe_users.UserName(name=mark) for mark in MARKS])
        for broker in self._cluster.brokers:
            try:
                if broker.node_id not in self._nodes:
                    self._nodes[broker.node_id] = Conversation(broker.address, 1.0, self._secured.door())
                node = self._nodes[broker.node_id]
                response = node.ask("DescribeUserScramCredentials", 0, request, describe_users.Response)
            except OSError:
                gone = self._nodes.pop(broker.node_id, None)
                if gone is not None:
                    gone.close()
                continue
            self._take(broker.node_id, response)

    def _take(self, node_id: int, response: Any) -> None:
        answered_s = time.monotonic()
        for row in response.results:
            for info in row.credential_infos:
                self._registers[row.user].know(node_id, answered_s, info.iterations - ITERATIONS_MIN)

    def finish(self) -> None:
        self._wanted = False
        self.join(30)
