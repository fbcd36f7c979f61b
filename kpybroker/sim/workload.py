"""Starts the clients of every run: producers, consumers, group members, committers without a group, two admins."""

from __future__ import annotations

from kpybroker.sim.actors.consumer_group import GROUP as SHARED_GROUP
from kpybroker.sim.clients.classic_members import ClassicGroupMember, Committer
from kpybroker.sim.clients.consuming import Consumer
from kpybroker.sim.clients.group_admin import GroupAdmin
from kpybroker.sim.clients.producing import SimProducer
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import TopicAdmin

GROUP = "group"


def start_clients(run: Run) -> None:
    """Start the clients. They draw from `run.random` in this order."""
    setup, random, writable, pace_s = run.setup, run.random, run.writable, run.pace_s
    for number in range(setup.producers):
        acks, idempotent = random.choice(((-1, True), (-1, True), (-1, False), (1, False)))
        client = run.client(f"p{number}")
        place = random.choice(writable)
        run.start(
            client,
            SimProducer(client, place, acks=acks, idempotent=idempotent, pace_s=pace_s, slows_after=run.slows_after),
        )
    for number in range(setup.consumers):
        client = run.client(f"c{number}")
        places = [place for place in writable if random.random() < 0.7] or writable
        max_wait_ms = random.choice((0, 100, 500))
        committed = setup.transactors > 0 and random.random() < 0.7
        run.start(client, Consumer(client, places, max_wait_ms=max_wait_ms, pace_s=pace_s, committed=committed))
    for number in range(setup.members):
        client = run.client(f"m{number}")
        group, ownership = (SHARED_GROUP, run.ownership) if setup.consumer_members else (GROUP, None)
        run.start(client, ClassicGroupMember(client, group, writable, pace_s=1.0, ownership=ownership))
    for number in range(setup.committers):
        client = run.client(f"k{number}")
        run.start(client, Committer(client, f"lone{number}", random.choice(writable), pace_s=pace_s))
    client = run.client("caretaker")
    run.start(client, GroupAdmin(client, random.choice(writable), pace_s=6.0))
    client = run.client("operator")
    run.start(client, TopicAdmin(client, setup.replicas, pace_s=6.0))
