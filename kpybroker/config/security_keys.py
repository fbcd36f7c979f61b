"""Broker settings of security: TLS, SASL, delegation tokens, authorization.

A setting that requires a protection that is missing here is refused. A setting that only configures such a protection
is harmless, because it protects nothing by itself, neither here nor in Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.key import (
    BOOLEAN,
    CLASS,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    SHORT,
    STRING,
    ConfigKey,
    Mode,
    at_least,
    between,
    harmless,
    obeyed,
    one_of,
    refused,
)

PER_BROKER = Mode.PER_BROKER
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

TRUSTED = "remove the setting, and listen only on 127.0.0.1 or on a network where every client may do everything"
NO_VALIDATOR = (
    "Java classes are not run; remove the setting, and set sasl.oauthbearer.jwks.endpoint.url, expected.audience and "
    "expected.issuer instead"
)
NO_TLS = (
    "Java classes are not run, and TLS uses OpenSSL here; remove the setting, and set ssl.keystore.location instead"
)
NO_PRINCIPALS = (
    "Java classes are not run; remove the setting, and set ssl.principal.mapping.rules instead: the principal is the "
    "user of the login, or the name in the certificate"
)
AT_START = "Read when the broker starts. Setting for one listener: listener.name.<listener>.<setting>."
STORED = "For one listener (listener.name.<listener>.<setting>), it can change while the broker runs."
STORES = f"PEM, PKCS12 or JKS. {STORED}"
SUITES = f"Named as in Java. The suites of TLS 1.3 can only be enabled or disabled together. {AT_START}"
HOST_NAMES = "Whether a node checks that a certificate belongs to the host that it connects to; if empty, it does not."
OTHER_TLS = "Has no effect: TLS uses OpenSSL here."
ONLY_SASL = "Configures GSSAPI or Java classes of SASL; neither is served."
ONLY_CLIENTS = "Only for clients that fetch tokens. Nodes cannot log in with tokens."
MECHANISMS = "Of Kafka's mechanisms, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER are served."
BETWEEN = "PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 are served between brokers."
OF_TOKENS = "Only for OAUTHBEARER with signed tokens. May have the prefix of listener and mechanism."
OF_KEYS = "Only for OAUTHBEARER with keys at http:// or https://. May have the prefix of listener and mechanism."
HANDLERS = (
    "Only for OAUTHBEARER, with the prefix of listener and mechanism: "
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler for signed tokens; not set for "
    "unsecured tokens."
)
DELAY = "Nothing is read from the connection during this time."
PREFIXED = "May have the prefix of a listener."
JAAS = "Takes effect with the prefix of listener and mechanism: listener.name.<listener>.<mechanism>.sasl.jaas.config."
TOKENS = "Only for delegation tokens, which are enabled if delegation.token.secret.key is set."
TOKEN_KEY = "Must be the same on all nodes. Without it, delegation tokens are disabled."
NO_PROVIDERS = "Adds Java classes for cryptography; none is used here."

SECURITY_KEYS: tuple[ConfigKey, ...] = (
    obeyed("authorizer.class.name", STRING, "", doc=f"{STANDARD_AUTHORIZER}, or none."),
    obeyed("connection.failed.authentication.delay.ms", INT, "100", at_least(0), doc=DELAY),
    obeyed("connections.max.reauth.ms", LONG, "0", doc=PREFIXED),
    obeyed("delegation.token.expiry.check.interval.ms", LONG, "3600000", at_least(1), doc=TOKENS),
    obeyed("delegation.token.expiry.time.ms", LONG, "86400000", at_least(1), doc=TOKENS),
    obeyed("delegation.token.max.lifetime.ms", LONG, "604800000", at_least(1), doc=TOKENS),
    obeyed("delegation.token.secret.key", PASSWORD, None, doc=TOKEN_KEY),
    refused(
        "principal.builder.class",
        CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        None,
        PER_BROKER,
        doc=NO_PRINCIPALS,
    ),
    harmless("sasl.client.callback.handler.class", CLASS, None, doc=ONLY_SASL),
    obeyed("sasl.enabled.mechanisms", LIST, "GSSAPI", None, PER_BROKER, doc=MECHANISMS),
    obeyed("sasl.jaas.config", PASSWORD, None, None, PER_BROKER, doc=JAAS),
    harmless("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", None, PER_BROKER, doc=ONLY_SASL),
    harmless("sasl.kerberos.min.time.before.relogin", LONG, "60000", None, PER_BROKER, doc=ONLY_SASL),
    harmless("sasl.kerberos.principal.to.local.rules", LIST, "DEFAULT", None, PER_BROKER, doc=ONLY_SASL),
    harmless("sasl.kerberos.service.name", STRING, None, None, PER_BROKER, doc=ONLY_SASL),
    harmless("sasl.kerberos.ticket.renew.jitter", DOUBLE, "0.05", None, PER_BROKER, doc=ONLY_SASL),
    harmless("sasl.kerberos.ticket.renew.window.factor", DOUBLE, "0.8", None, PER_BROKER, doc=ONLY_SASL),
    harmless("sasl.login.callback.handler.class", CLASS, None, doc=ONLY_SASL),
    harmless("sasl.login.class", CLASS, None, doc=ONLY_SASL),
    harmless("sasl.login.connect.timeout.ms", INT, None, doc=ONLY_CLIENTS),
    harmless("sasl.login.read.timeout.ms", INT, None, doc=ONLY_CLIENTS),
    harmless("sasl.login.refresh.buffer.seconds", SHORT, "300", None, PER_BROKER, doc=ONLY_CLIENTS),
    harmless("sasl.login.refresh.min.period.seconds", SHORT, "60", None, PER_BROKER, doc=ONLY_CLIENTS),
    harmless("sasl.login.refresh.window.factor", DOUBLE, "0.8", None, PER_BROKER, doc=ONLY_CLIENTS),
    harmless("sasl.login.refresh.window.jitter", DOUBLE, "0.05", None, PER_BROKER, doc=ONLY_CLIENTS),
    harmless("sasl.login.retry.backoff.max.ms", LONG, "10000", doc=ONLY_CLIENTS),
    harmless("sasl.login.retry.backoff.ms", LONG, "100", doc=ONLY_CLIENTS),
    obeyed("sasl.mechanism.controller.protocol", STRING, "GSSAPI", doc="Only PLAIN is served between controllers."),
    obeyed("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", None, PER_BROKER, doc=BETWEEN),
    harmless(
        "sasl.oauthbearer.assertion.algorithm",
        STRING,
        "RS256",
        one_of("ES256", "RS256", any_case=True),
        doc=ONLY_CLIENTS,
    ),
    harmless("sasl.oauthbearer.assertion.claim.aud", STRING, None, doc=ONLY_CLIENTS),
    harmless("sasl.oauthbearer.assertion.claim.exp.seconds", INT, "300", between(0, 86400), doc=ONLY_CLIENTS),
    harmless("sasl.oauthbearer.assertion.claim.iss", STRING, None, doc=ONLY_CLIENTS),
    harmless("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, "false", doc=ONLY_CLIENTS),
    harmless("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, "60", between(0, 3600), doc=ONLY_CLIENTS),
    harmless("sasl.oauthbearer.assertion.claim.sub", STRING, None, doc=ONLY_CLIENTS),
    harmless("sasl.oauthbearer.assertion.file", STRING, None, doc=ONLY_CLIENTS),
    harmless("sasl.oauthbearer.assertion.private.key.file", STRING, None, doc=ONLY_CLIENTS),
    harmless("sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None, doc=ONLY_CLIENTS),
    harmless("sasl.oauthbearer.assertion.template.file", STRING, None, doc=ONLY_CLIENTS),
    harmless("sasl.oauthbearer.client.credentials.client.id", STRING, None, doc=ONLY_CLIENTS),
    harmless("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None, doc=ONLY_CLIENTS),
    obeyed("sasl.oauthbearer.clock.skew.seconds", INT, "30", doc=OF_TOKENS),
    obeyed("sasl.oauthbearer.expected.audience", LIST, "", doc=OF_TOKENS),
    obeyed("sasl.oauthbearer.expected.issuer", STRING, None, doc=OF_TOKENS),
    obeyed("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, "3600000", doc=OF_KEYS),
    obeyed("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, "10000", doc=OF_KEYS),
    obeyed("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, "100", doc=OF_KEYS),
    obeyed("sasl.oauthbearer.jwks.endpoint.url", STRING, None, doc=OF_TOKENS),
    harmless(
        "sasl.oauthbearer.jwt.retriever.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        doc=ONLY_CLIENTS,
    ),
    refused(
        "sasl.oauthbearer.jwt.validator.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        doc=NO_VALIDATOR,
    ),
    harmless("sasl.oauthbearer.scope", STRING, None, doc=ONLY_CLIENTS),
    obeyed("sasl.oauthbearer.scope.claim.name", STRING, "scope", doc=OF_TOKENS),
    obeyed("sasl.oauthbearer.sub.claim.name", STRING, "sub", doc=OF_TOKENS),
    harmless("sasl.oauthbearer.token.endpoint.url", STRING, None, doc=ONLY_CLIENTS),
    obeyed("sasl.server.callback.handler.class", CLASS, None, doc=HANDLERS),
    obeyed("sasl.server.max.receive.size", INT, "524288", doc=PREFIXED),
    obeyed(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        doc="Brokers then use the listener with the name of this protocol.",
    ),
    harmless("security.providers", STRING, None, doc=NO_PROVIDERS),
    harmless("ssl.allow.dn.changes", BOOLEAN, "false", doc=OTHER_TLS),
    harmless("ssl.allow.san.changes", BOOLEAN, "false", doc=OTHER_TLS),
    obeyed("ssl.cipher.suites", LIST, "", None, PER_BROKER, doc=SUITES),
    obeyed("ssl.client.auth", STRING, "none", one_of("required", "requested", "none"), PER_BROKER, doc=AT_START),
    obeyed("ssl.enabled.protocols", LIST, "TLSv1.2,TLSv1.3", None, PER_BROKER, doc=AT_START),
    obeyed("ssl.endpoint.identification.algorithm", STRING, "https", None, PER_BROKER, doc=HOST_NAMES),
    refused("ssl.engine.factory.class", CLASS, None, None, PER_BROKER, doc=NO_TLS),
    obeyed("ssl.key.password", PASSWORD, None, None, PER_BROKER, doc=STORED),
    harmless("ssl.keymanager.algorithm", STRING, "SunX509", None, PER_BROKER, doc=OTHER_TLS),
    obeyed("ssl.keystore.certificate.chain", PASSWORD, None, None, PER_BROKER, doc=STORED),
    obeyed("ssl.keystore.key", PASSWORD, None, None, PER_BROKER, doc=STORED),
    obeyed("ssl.keystore.location", STRING, None, None, PER_BROKER, doc=STORED),
    obeyed("ssl.keystore.password", PASSWORD, None, None, PER_BROKER, doc=STORED),
    obeyed("ssl.keystore.type", STRING, "JKS", None, PER_BROKER, doc=STORES),
    obeyed("ssl.principal.mapping.rules", STRING, "DEFAULT", doc=AT_START),
    harmless("ssl.protocol", STRING, "TLSv1.3", None, PER_BROKER, doc=OTHER_TLS),
    harmless("ssl.provider", STRING, None, None, PER_BROKER, doc=OTHER_TLS),
    harmless("ssl.secure.random.implementation", STRING, None, None, PER_BROKER, doc=OTHER_TLS),
    harmless("ssl.trustmanager.algorithm", STRING, "PKIX", None, PER_BROKER, doc=OTHER_TLS),
    obeyed("ssl.truststore.certificates", PASSWORD, None, None, PER_BROKER, doc=STORED),
    obeyed("ssl.truststore.location", STRING, None, None, PER_BROKER, doc=STORED),
    obeyed("ssl.truststore.password", PASSWORD, None, None, PER_BROKER, doc=STORED),
    obeyed("ssl.truststore.type", STRING, "JKS", None, PER_BROKER, doc=STORES),
)

AUTHORIZER_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        obeyed("allow.everyone.if.no.acl.found", BOOLEAN, "false", doc="Only with an authorizer."),
        obeyed("super.users", STRING, "", doc="Only with an authorizer. Example: User:a;User:b."),
    )
}
"""Settings of Kafka's StandardAuthorizer, which are not in Kafka's table. The defaults are the values that apply
here."""

SASL_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in SECURITY_KEYS
    if key.name
    in (
        "connections.max.reauth.ms",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "sasl.mechanism.controller.protocol",
        "sasl.mechanism.inter.broker.protocol",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.server.callback.handler.class",
        "sasl.server.max.receive.size",
    )
}
"""Settings of logins. A node reads them only when it starts, so a dynamic change would have no effect."""

STORE_KEYS = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Settings that can change for one listener while the broker runs (SslConfigs.RECONFIGURABLE_CONFIGS)."""
