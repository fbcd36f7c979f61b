"""The clients that every run has: producers, consumers, members of a group, lone commits, a caretaker, an operator."""

from __future__ import annotations

from kpybroker.sim.actors.consumer_group import GROUP as SHARED_GROUP
from kpybroker.sim.clients.classic_members import Committer, Member
from kpybroker.sim.clients.consuming import Consumer
from kpybroker.sim.clients.group_admin import Caretaker
from kpybroker.sim.clients.producing import Producer
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import Operator

GROUP = "group"


def employ(run: Run) -> None:
    """Start them. They draw from `run.random`, in this order."""
    setup, random, worked, pace_s = run.setup, run.random, run.worked, run.pace_s
    for number in range(setup.producers):
        acks, idempotent = random.choice(((-1, True), (-1, True), (-1, False), (1, False)))
        client = run.client(f"p{number}")
        place = random.choice(worked)
        run.start(
            client,
            Producer(client, place, acks=acks, idempotent=idempotent, pace_s=pace_s, tires_after=run.tires_after),
        )
    for number in range(setup.consumers):
        client = run.client(f"c{number}")
        places = [place for place in worked if random.random() < 0.7] or worked
        max_wait_ms = random.choice((0, 100, 500))
        committed = setup.transactors > 0 and random.random() < 0.7
        run.start(client, Consumer(client, places, max_wait_ms=max_wait_ms, pace_s=pace_s, committed=committed))
    for number in range(setup.members):
        client = run.client(f"m{number}")
        group, shares = (SHARED_GROUP, run.shares) if setup.sharers else (GROUP, None)
        run.start(client, Member(client, group, worked, pace_s=1.0, shares=shares))
    for number in range(setup.committers):
        client = run.client(f"k{number}")
        run.start(client, Committer(client, f"lone{number}", random.choice(worked), pace_s=pace_s))
    client = run.client("caretaker")
    run.start(client, Caretaker(client, random.choice(worked), pace_s=6.0))
    client = run.client("operator")
    run.start(client, Operator(client, setup.replicas, pace_s=6.0))
