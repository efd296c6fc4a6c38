"""Client settings in the dialects of librdkafka and of the Java client."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from muster.kafka.client_settings import HIDDEN, ClientSettings, client_settings, redacted
from muster.protocol.errors import ConfigError

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SCRAM_IN_JAVA = {
    "bootstrap.servers": "b:1",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.jaas.config": f'{SCRAM} required username="ann" password="p\\"w;=d";',
}
SCRAM_IN_RDKAFKA = {
    "bootstrap.servers": "b:1",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "ann",
    "sasl.password": 'p"w;=d',
}

TLS_CASES = [
    (
        {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"},
        {"ssl.ca.location": "/ca.pem"},
    ),
    (
        {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "CERT"},
        {"ssl.ca.pem": "CERT"},
    ),
    (
        {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/me.pem"},
        {"ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.pem"},
    ),
    (
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": "CERT",
            "ssl.keystore.key": "KEY",
        },
        {"ssl.certificate.pem": "CERT", "ssl.key.pem": "KEY"},
    ),
    (
        {"ssl.endpoint.identification.algorithm": ""},
        {"ssl.endpoint.identification.algorithm": "none"},
    ),
]


def test_a_scram_login_is_translated_both_ways() -> None:
    """A SCRAM login translates both ways, also with quotes in the password."""
    assert ClientSettings(SCRAM_IN_JAVA).librdkafka() == SCRAM_IN_RDKAFKA
    assert ClientSettings(SCRAM_IN_RDKAFKA).java() == SCRAM_IN_JAVA


@pytest.mark.parametrize(("java", "rdkafka"), TLS_CASES)
def test_tls_is_translated_both_ways(java: dict[str, str], rdkafka: dict[str, str]) -> None:
    """PEM stores translate both ways without loss."""
    bootstrap = {"bootstrap.servers": "b:1"}
    assert ClientSettings(bootstrap | java).librdkafka() == bootstrap | rdkafka
    assert ClientSettings(bootstrap | rdkafka).java() == bootstrap | java


def test_pkcs12_is_left_to_librdkafka() -> None:
    """A PKCS12 key store passes through, because both clients read it."""
    given = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/k", "ssl.key.password": "x"}
    assert ClientSettings(given).librdkafka() == {
        "bootstrap.servers": "localhost:9092",
        "ssl.keystore.location": "/k",
        "ssl.key.password": "x",
    }


@pytest.mark.parametrize(
    ("given", "client", "key"),
    [
        ({"ssl.truststore.location": "/t.jks"}, "librdkafka", "ssl.truststore.type"),
        ({"ssl.keystore.location": "/k.jks"}, "librdkafka", "ssl.keystore.type"),
        ({"sasl.jaas.config": "nonsense"}, "librdkafka", "sasl.jaas.config"),
        ({"sasl.username": "u", "sasl.password": "p"}, "java", "sasl.mechanism"),
        (
            {"ssl.certificate.location": "/c", "ssl.key.location": "/k"},
            "java",
            "ssl.certificate.location",
        ),
        (
            {"enable.ssl.certificate.verification": "false"},
            "java",
            "enable.ssl.certificate.verification",
        ),
    ],
)
def test_a_setting_without_a_counterpart_is_named(
    given: dict[str, str], client: str, key: str
) -> None:
    """A setting that one client cannot express is refused, and the error names it."""
    with pytest.raises(ConfigError) as error:
        getattr(ClientSettings(given), client)()
    assert error.value.key == key


def test_oauth_client_credentials_reach_librdkafka() -> None:
    """An OAUTHBEARER login with client credentials becomes librdkafka's oidc method."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    given = {
        "bootstrap.servers": "b:1",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "http://t",
        "sasl.jaas.config": f"{module} required clientId='me' clientSecret=\"s\" scope=all;",
    }
    assert ClientSettings(given).librdkafka() == {
        "bootstrap.servers": "b:1",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "http://t",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "s",
        "sasl.oauthbearer.scope": "all",
    }


def test_sources_of_settings_in_order(tmp_path: Path) -> None:
    """Values of kafka. keys win over the file, and the given address wins over all."""
    file = tmp_path / "client.properties"
    file.write_text(
        "# a comment\nbootstrap.servers=file:1\nclient.id : from-file\n"
        "kafka.security.protocol=SSL\nssl.truststore.certificates=a\\\n  b\n"
    )
    assert client_settings(None, file, {"kafka.client.id": "mine"}).values == {
        "bootstrap.servers": "file:1",
        "client.id": "mine",
        "security.protocol": "SSL",
        "ssl.truststore.certificates": "ab",
    }
    assert client_settings("given:2", file).bootstrap == "given:2"
    assert client_settings().bootstrap == "localhost:9092"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The error names a properties file that does not exist."""
    with pytest.raises(ConfigError, match=r"nowhere\.properties.*No such file"):
        client_settings(None, tmp_path / "nowhere.properties")


def test_secrets_are_hidden() -> None:
    """`repr` and `redacted` do not show passwords, keys, logins and client secrets."""
    secret = {
        "sasl.jaas.config": "S",
        "sasl.password": "S",
        "ssl.keystore.password": "S",
        "ssl.keystore.key": "S",
        "ssl.key.pem": "S",
        "sasl.oauthbearer.client.secret": "S",
        "sasl.oauthbearer.assertion.private.key.passphrase": "S",
    }
    open_ = {"sasl.username": "ann", "sasl.oauthbearer.token.endpoint.url": "http://t"}
    assert redacted(secret | open_) == dict.fromkeys(secret, HIDDEN) | open_
    assert "'S'" not in repr(ClientSettings(secret))


def test_producers_agree_on_partitions() -> None:
    """A user's setting cannot change the partitioner; it can change others."""
    settings = ClientSettings({"partitioner": "random", "linger.ms": "5"})
    assert settings.producer({"client.id": "c"}) == {
        "bootstrap.servers": "localhost:9092",
        "partitioner": "murmur2_random",
        "enable.idempotence": "true",
        "acks": "all",
        "linger.ms": "5",
        "reconnect.backoff.max.ms": "1000",
        "topic.metadata.refresh.interval.ms": "10000",
        "client.id": "c",
    }


def test_spark_gets_java_names_behind_kafka() -> None:
    """Spark's options are the Java settings with the prefix kafka."""
    assert ClientSettings(SCRAM_IN_RDKAFKA).spark() == {
        f"kafka.{key}": value for key, value in SCRAM_IN_JAVA.items()
    }


def test_librdkafka_accepts_the_translated_settings() -> None:
    """Settings made from a Java client's file are accepted by librdkafka."""
    java_only = {
        "ssl.protocol": "TLSv1.3",
        "ssl.enabled.protocols": "TLSv1.3",
        "sasl.login.callback.handler.class": "x.Y",
        "default.api.timeout.ms": "1",
        "key.serializer": "x.Y",
        "send.buffer.bytes": "1",
    }
    plain = SCRAM_IN_JAVA | {"ssl.endpoint.identification.algorithm": ""}
    AdminClient(ClientSettings(plain | java_only).librdkafka({"log_level": 0}))
