"""Client settings with a mistake: every command names it in one line, and shows no secret."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from muster import Worker
from muster.cli.console import configure, console_of
from muster.cli.main import USAGE, _Parser, main
from muster.errors import BadInput
from muster.kafka import access_check
from muster.kafka.acls import Role
from muster.kafka.client_settings import ClientSettings, client_settings
from muster.protocol.errors import ConfigError

NO_BROKER = "127.0.0.1:1"
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "u", "sasl.password": "hunter22"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"securty.protocol": "SSL"}, "securty.protocol"),
        ({"security.protocol": "SASL_SLL"}, "SASL_SLL"),
        ({**LOGIN, "sasl.mechanism": "SCRAM-512"}, "SCRAM-512"),
        (
            {"security.protocol": "SSL", "ssl.truststore.type": "PEM"}
            | {"ssl.truststore.location": "/nowhere/ca.pem"},
            r"ssl.truststore.location: /nowhere/ca.pem cannot be read \(No such file",
        ),
        ({"acks": "1"}, "acks"),  # only a producer refuses it
    ],
)
def test_the_check_at_a_start_names_it(settings: dict[str, str], named: str) -> None:
    """The check that job, clock, governor and commands begin with asks no broker for it."""
    clients = ClientSettings({"bootstrap.servers": NO_BROKER, **settings})
    with pytest.raises(BadInput, match=named) as refusal:
        access_check.check(clients, Role.JOB, ["muster"], timeout_s=1)
    assert "hunter22" not in str(refusal.value)


@pytest.mark.parametrize("command", ["topics create", "clock", "groups list"])
def test_commands_say_it_in_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is that of wrong usage, and there is no traceback."""
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={NO_BROKER}\nsecurty.protocol=SSL\n")
    assert main([*command.split(), "--command-config", str(file)]) == USAGE
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert 'not accepted: No such configuration property: "securty.protocol"' in told


def test_a_console_does_not_start(tmp_path: Path) -> None:
    """A console with such settings ends; it logged every two seconds that it cannot read."""
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={NO_BROKER}\nsecurty.protocol=SSL\n")
    parser = _Parser()
    configure(parser)
    with pytest.raises(BadInput, match=r"securty\.protocol"):
        console_of(parser.parse_args(["--port", "0", "--command-config", str(file)]))


def test_a_worker_does_not_show_the_value_of_a_misspelt_secret() -> None:
    """`sasl.pasword` is not known to be a secret, so no value of the settings is shown."""
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.pasword": "hunter22"}
    with pytest.raises(ConfigError, match=r"sasl\.pasword") as refusal:
        Worker(group="g", bootstrap_servers=NO_BROKER, config=config)
    assert "hunter22" not in str(refusal.value)


@pytest.mark.parametrize("bad", ["kafka:ninety", "::1", "", "a:9092,b:", "${KAFKA}:", "a b:9092"])
def test_a_malformed_address_is_named(bad: str) -> None:
    """Otherwise a start would wait a minute for its answer, or end with a traceback."""
    with pytest.raises(ConfigError, match=r"bootstrap\.servers: .* expected HOST:PORT"):
        client_settings(bad)


@pytest.mark.parametrize("bad", ["a:0", "a:9092,b:65536", "[::1]:99999", f"a:{9 * 10**12}"])
def test_a_port_that_there_is_not_is_named(bad: str) -> None:
    """A client would use the lower 16 bits of the number, which are another port."""
    with pytest.raises(
        ConfigError, match=r"bootstrap\.servers: .* expected a port from 1 to 65535"
    ):
        client_settings(bad)


def test_silence_without_a_reason_says_what_to_check() -> None:
    """A listener that wants another protocol accepts the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        clients = client_settings(f"127.0.0.1:{mute.getsockname()[1]}")
        with pytest.raises(
            access_check.Silent, match=r"is it Kafka's port, and is security\.protocol that of"
        ):
            access_check.reach(clients, timeout_s=0.5)


def test_silence_counts_the_time_that_another_client_has_tried() -> None:
    """`muster shadow` and `adopt` try with two clients, one after the other."""
    with pytest.raises(access_check.Silent, match=r"no answer within 15\.3 s"):
        access_check.reach(client_settings("127.0.0.1:1"), timeout_s=0.3, waited_s=15)


def test_a_long_check_says_that_it_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without Kafka, `muster run` and `adopt` say once which broker does not answer, and why."""
    monkeypatch.setattr(access_check, "TIMEOUT_S", 1.5)
    monkeypatch.setattr(access_check, "SAY_S", 0.5)
    with pytest.raises(access_check.Silent):
        access_check.reach(client_settings("127.0.0.1:1"), timeout_s=1.5)
    (message,) = [each.getMessage() for each in caplog.records if each.name == "muster.kafka"]
    assert message.startswith("Kafka at 127.0.0.1:1 does not answer (")
    assert message.endswith(": waits for it, at most 1.5 s")


@pytest.mark.parametrize("good", ["a", "a:1,", "a:1, b-c.d_e:2", "[::1]:9092", "PLAINTEXT://a:1"])
def test_addresses_that_kafkas_clients_read(good: str) -> None:
    """Every form that they accept is left as it is."""
    assert client_settings(good).bootstrap == good
