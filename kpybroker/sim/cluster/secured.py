"""Settings of nodes with logins on all listeners, and the users of a cluster with these settings."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from kpybroker.config.jaas import MODULES, OAUTHBEARER
from kpybroker.config.security_keys import STANDARD_AUTHORIZER
from kpybroker.security.sasl.plain import PLAIN
from kpybroker.sim.cluster.setup import NodeSetup, Setup

LISTENER, CONTROLLER = "SASL_PLAINTEXT", "CONTROLLER"
NODE, ADMIN = "node", "admin"
"""The super users: the nodes, and the clients that prepare and check a run."""
ANN, BOB, CAY, DAN, EVE = "ann", "bob", "cay", "dan", "eve"
"""Users that log in with PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, delegation tokens, and OAUTHBEARER tokens."""
OPERATOR = "-operator"
"""The suffix of the names of users that may also administer the cluster."""
USERS = tuple(f"{name}{role}" for role in ("", OPERATOR) for name in (ANN, BOB, CAY, DAN, EVE))
SCRAM_USERS = {BOB: "SCRAM-SHA-256", CAY: "SCRAM-SHA-512"}
BETWEEN_BROKERS = "sasl.mechanism.inter.broker.protocol"
REAUTH_MS = ("2000", "4000", "15000")
TOKEN_KEY = "the key of all tokens"


def password_of(user: str) -> str:
    """The password of a user, for both PLAIN and SCRAM."""
    return f"of {user}"


def between_brokers(setup: Setup) -> str:
    """The mechanism with which brokers log in to each other."""
    return setup.nodes[0].properties[BETWEEN_BROKERS]


def secured(setup: Setup, random: Random) -> Setup:
    """The setup with logins on all listeners, with ACLs, and with sessions of a few seconds."""
    shared = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{NODE};User:{ADMIN}",
        "connections.max.reauth.ms": random.choice(REAUTH_MS),
        "delegation.token.secret.key": TOKEN_KEY,
        "delegation.token.expiry.check.interval.ms": random.choice(("1000", "5000")),
        BETWEEN_BROKERS: random.choice((PLAIN, PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")),
        **_logins_at(LISTENER, (*SCRAM_USERS.values(), OAUTHBEARER)),
    }
    if len(setup.nodes) > 1:
        shared |= {
            "listener.security.protocol.map": f"{LISTENER}:{LISTENER},{CONTROLLER}:{LISTENER}",
            "controller.listener.names": CONTROLLER,
            "sasl.mechanism.controller.protocol": PLAIN,
            **_logins_at(CONTROLLER, ()),
        }
    shared["inter.broker.listener.name"] = LISTENER
    return replace(setup, nodes=tuple(_with_logins(node, shared) for node in setup.nodes))


def _logins_at(listener: str, more: tuple[str, ...]) -> dict[str, str]:
    """The settings of a listener that offers PLAIN and `more` mechanisms. Nodes may log in with all of them except
    tokens."""
    own = f'username="{NODE}" password="{password_of(NODE)}"'
    options = {
        PLAIN: " ".join([own, *(f'user_{user}="{password_of(user)}"' for user in (NODE, ADMIN, *USERS))]),
        **dict.fromkeys(SCRAM_USERS.values(), own),
        OAUTHBEARER: "",
    }
    name = f"listener.name.{listener.lower()}"
    return {
        f"{name}.sasl.enabled.mechanisms": ",".join((PLAIN, *more)),
        **{
            f"{name}.{mechanism.lower()}.sasl.jaas.config": f"{MODULES[mechanism]} required {options[mechanism]};"
            for mechanism in (PLAIN, *more)
        },
    }


def _with_logins(node: NodeSetup, shared: dict[str, str]) -> NodeSetup:
    listeners = node.properties["listeners"].replace("PLAINTEXT://", f"{LISTENER}://", 1)
    return replace(node, properties={**node.properties, **shared, "listeners": listeners})
