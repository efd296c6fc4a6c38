"""The console over HTTPS: what it serves, and what is said of files that cannot be used."""

from __future__ import annotations

import ssl
import urllib.request
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from support.console.played import PREFIX, demo_life, play
from support.console.served import served
from support.kafka.secured import Authority

from muster.cli.main import main
from muster.console.server import ListenAddress
from muster.console.store import Store

PASSPHRASE = "not to be shown"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority whose certificates and keys are in one file each."""
    return Authority(tmp_path_factory.mktemp("tls"))


def test_pages_come_over_https(authority: Authority) -> None:
    """A client that trusts the authority reads; one that does not refuses the certificate."""
    file = str(authority.issue("console"))
    store = Store([PREFIX])
    play(store, demo_life())
    with served(store, listen_on=ListenAddress(port=0, certificate=file, key=file)) as url:
        assert url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(authority.file))
        with urllib.request.urlopen(f"{url}api/frame?g=g", context=trusting) as answer:
            assert answer.status == 200
            assert b'"generation":4' in answer.read()
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(url, context=ssl.create_default_context())


def test_files_that_cannot_serve_are_one_line(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each names its option, its file and what is expected; a passphrase is not waited for."""
    good, other = authority.issue("good"), authority.issue("other")
    plain = tmp_path / "notes.txt"
    plain.write_text("no certificate")
    locked = tmp_path / "locked.pem"
    key = serialization.load_pem_private_key(good.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(PASSPHRASE.encode()),
        )
    )
    pem = "expected PEM files of a key and its certificate"
    for certificate, secret, said in (
        (tmp_path / "none.pem", good, f"--tls-cert {tmp_path / 'none.pem'}: No such file"),
        (good, tmp_path / "none.pem", f"--tls-key {tmp_path / 'none.pem'}: No such file"),
        (good, plain, f"--tls-key {plain}: {pem}, {good}"),
        (plain, good, f"--tls-key {good}: {pem}, {plain}"),
        (good, other, f"--tls-key {other}: expected the key of the certificate {good}"),
        (good, locked, f"--tls-key {locked}: expected a key without a passphrase"),
        (good, tmp_path, f"--tls-key {tmp_path}: Is a directory"),
    ):
        words = ["console", "--port", "0", "--tls-cert", str(certificate), "--tls-key", str(secret)]
        assert main(words) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith(f"muster console: {said}"), shown.err
        assert shown.err.count("\n") == 1
    assert main(["console", "--tls-cert", str(good)]) == 2
    assert "give both --tls-cert FILE and --tls-key FILE" in capsys.readouterr().err
    assert main(["console", "--port", "65536"]) == 2
    assert "--port 65536 at --host 127.0.0.1: expected 0 to 65535" in capsys.readouterr().err
