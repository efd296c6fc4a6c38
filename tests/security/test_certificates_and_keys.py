"""What the doctor says about certificates and keys that have ended or will end soon."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from support.kafka.secured import EXPIRED, Authority

from muster.doctor import certificates_and_keys
from muster.doctor.finding import Level
from muster.kafka import certificates
from muster.kafka.client_settings import ClientSettings
from muster.signing import rotation

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
HOUR_MS = 3_600_000


def test_certificates_that_ended_or_soon_will(tmp_path: Path) -> None:
    """An expired certificate fails, one with two weeks left warns, one with two months is OK."""
    authority = Authority(tmp_path)
    findings = []
    for name, ends in (
        ("bygone", EXPIRED),
        ("soon", NOW + timedelta(days=14)),
        ("well", NOW + timedelta(days=60)),
    ):
        file = str(authority.issue(name, ends))
        settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": file}
        findings += certificates.own(ClientSettings(settings))
    said = [
        (f.check, f.subject, f.level) for f in certificates_and_keys.of_certificates(findings, NOW)
    ]
    assert said == [
        ("certificate", "CN=bygone", Level.FAIL),
        ("certificate", "CN=soon", Level.WARN),
        ("certificate", "CN=well", Level.OK),
    ]


def test_keys_by_what_they_sign(tmp_path: Path) -> None:
    """A fresh key is OK, an old one warns, and a caller whose only key has ended fails."""
    content = rotation.new_key({}, NOW_MS - HOUR_MS, callers=["member"])
    content = rotation.new_key(content, NOW_MS - 9 * HOUR_MS, callers=["operator"])
    content = rotation.new_key(content, NOW_MS - 9 * HOUR_MS, callers=["clock"])
    content["keys"][0]["until_ms"] = NOW_MS - HOUR_MS
    path = tmp_path / "ring.json"
    rotation.write(path, content)
    findings = [*certificates_and_keys.look(ClientSettings({}), str(path), NOW_MS)]
    assert [(f.check, f.subject, f.level) for f in findings] == [
        ("keys", "clock of *", Level.FAIL),
        ("keys", "member of *", Level.OK),
        ("keys", "operator of *", Level.WARN),
    ]
    secrets = [row["secret"] for row in json.loads(path.read_text())["keys"]]
    assert [secret for secret in secrets if secret in repr(findings)] == []


def test_a_keyring_that_cannot_be_read_fails(tmp_path: Path) -> None:
    """A keyring that cannot be read is a failure that says why."""
    (finding,) = certificates_and_keys.look(ClientSettings({}), str(tmp_path / "none"), NOW_MS)
    assert (finding.level, "No such file" in finding.what) == (Level.FAIL, True)


def test_the_order_of_a_keys_groups_does_not_matter(tmp_path: Path) -> None:
    """A rotation writes them sorted: the key that has ended and its successor are one scope."""
    content = rotation.new_key({}, NOW_MS - 9 * HOUR_MS, groups=["pay", "orders"])
    content = rotation.rotated(content, NOW_MS - 3 * HOUR_MS)
    path = tmp_path / "ring.json"
    rotation.write(path, content)
    (finding,) = certificates_and_keys.look(ClientSettings({}), str(path), NOW_MS)
    assert finding.subject == "clock,exporter,member,operator of orders,pay"
    assert finding.level is not Level.FAIL
