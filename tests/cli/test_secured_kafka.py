"""A Kafka with logins, reached with a properties file in the form of Kafka's own tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.broker.embedded_kafka import EmbeddedKafka
from muster.cli.main import main
from muster.kafka.client_settings import client_settings

pytestmark = pytest.mark.broker

LOGIN = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="admin" password="pa;ss word";'
)
PROPERTIES = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
    "advertised.listeners": "SASL_PLAINTEXT://127.0.0.1:{port}",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": LOGIN,
}
JAVA = f"""\
security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config={LOGIN}
"""


def test_a_properties_file_logs_commands_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the login commands work; a wrong password gives an error that does not show it."""
    file = tmp_path / "client.properties"
    file.write_text(JAVA)
    client = {str(k): str(v) for k, v in client_settings("x", file).librdkafka().items()}
    del client["bootstrap.servers"]
    credentials = 'SCRAM-SHA-256=[name=admin,password="pa;ss word"]'
    with EmbeddedKafka(
        properties=PROPERTIES, format_arguments=["--add-scram", credentials], client=client
    ) as kafka:
        address = ("--bootstrap-server", kafka.bootstrap_server, "--command-config", str(file))
        assert main(["topics", "create", *address]) == 0
        assert main(["groups", "list", *address]) == 0
        file.write_text(JAVA.replace("pa;ss word", "wrong-password"))
        capsys.readouterr()
        assert main(["groups", "list", *address]) == 1
        said = capsys.readouterr().err
        assert "refuses the login of User:admin (SCRAM-SHA-256)" in said
        assert "wrong-password" not in said
