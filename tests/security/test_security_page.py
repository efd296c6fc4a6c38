"""`docs/security.md` matches the code: its table, its settings and its commands.

``UPDATE_DOCS=1`` writes the table again.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest
from support.repository.pages import made, markdown

from muster.cli.main import COMMANDS
from muster.kafka.acls import ROLES, Acl, Pattern, Resource, acls_of
from muster.kafka.client_settings import ClientSettings, read_properties
from muster.signing import keyring_file

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def blocks(kind: str) -> list[str]:
    """The fenced blocks of a kind."""
    return [text for name, text in FENCE.findall(PAGE.read_text()) if name == kind]


def acl_table() -> str:
    """The ACLs of every role for the prefix ``muster``, in the page's form."""
    rows = []
    for role, needs in ROLES.items():
        principals: dict[tuple[Resource, str, Pattern], list[str]] = {}
        for acl in acls_of(role, "muster"):
            principals.setdefault((acl.resource, acl.name, acl.pattern), []).append(acl.operation)
        rights = [
            f"{', '.join(operations)} on {str(Acl(*where, '')).removeprefix(' on ')}"
            for where, operations in principals.items()
        ]
        rows.append((f"`{role}`", needs.purpose, "<br>".join(rights)))
    return markdown(("role", "who", "ACLs for the prefix `muster`"), rows)


def test_the_acls_are_those_of_the_table() -> None:
    """The page's table has the ACLs of `muster.kafka.acls`."""
    on_page, expected = made("security.md", "acls: from muster.kafka.acls", acl_table())
    assert on_page == expected


@pytest.mark.parametrize("text", blocks("properties"))
def test_settings_are_understood_by_both_clients(text: str, tmp_path: Path) -> None:
    """Each example gives the same login, password and certificates to both clients."""
    file = tmp_path / "client.properties"
    file.write_text(text)
    settings = ClientSettings(read_properties(file))
    rdkafka, java = settings.librdkafka(), settings.java()
    assert rdkafka["ssl.ca.location"] == java["ssl.truststore.location"]
    if "SASL" in java["security.protocol"]:
        assert str(rdkafka["sasl.password"]) in java["sasl.jaas.config"]
        assert str(rdkafka["sasl.password"]) not in repr(settings)
        assert rdkafka["sasl.username"] in ("muster", "orders")
    else:
        assert rdkafka["ssl.certificate.location"] == java["ssl.keystore.location"]


def commands() -> list[list[str]]:
    """The words of every `muster` command on the page."""
    text = "\n".join(blocks("")).replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if re.match(r"muster \w+ ", line)]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_are_understood(words: list[str]) -> None:
    """Each command of the page exists and accepts the page's options."""
    module = importlib.import_module(COMMANDS[words[1]][0])
    parser = argparse.ArgumentParser(prog=words[1], exit_on_error=False, allow_abbrev=False)
    module.configure(parser)
    parser.parse_args(words[2:])


def test_every_key_of_a_keyring_is_explained() -> None:
    """The page has exactly the settings of a keyring, with their defaults."""
    page = PAGE.read_text()
    rows = dict(re.findall(r"^\| `((?:inter|signature)[a-z.]+)` \| (\S+) \|", page, re.M))
    rows = {name: default.strip("`") for name, default in rows.items()}
    expected = {
        name: str(value).replace("'", '"').replace("None", "null")
        for name, value in keyring_file.DEFAULTS.items()
    }
    assert rows == expected
