"""Keyrings: the file's format, reloading, rotation; and `muster keys`."""

from __future__ import annotations

import base64
import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from muster.cli.main import main
from muster.protocol.codec import encode
from muster.protocol.errors import ConfigError
from muster.protocol.events import Drain
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keyring import WINDOW_MS, Caller, Requirement, SigningKey
from muster.protocol.signature_check import Verifier
from muster.protocol.signing import HEADER
from muster.signing import followed_key_file, keyring_file, rotation
from muster.signing.followed_key_file import KeyFile, key_file_of, signed

SECRET = base64.b64encode(b"sixteen bytes ok").decode()
ROW: dict[str, Any] = {"id": "k", "secret": SECRET}
T = 1_795_240_800_000
DRAIN = Drain(group=GroupId("g"), member=MemberId("m"))
Output = pytest.CaptureFixture[str]


def written(path: Path, content: object) -> str:
    """Write content as JSON; return the path."""
    path.write_text(json.dumps(content))
    return str(path)


def test_a_key_needs_only_id_and_secret(tmp_path: Path) -> None:
    """The shortest keyring has one key with id and secret, and defaults for all else."""
    ring = keyring_file.read(written(tmp_path / "k", {"keys": [ROW]}))
    assert ring.keys == (SigningKey(id="k", secret=b"sixteen bytes ok"),)
    assert ring.required == ()
    key = ring.keys[0]
    assert (key.algorithm, key.from_ms, key.until_ms) == ("HmacSHA256", 0, None)
    assert (key.window_ms, key.groups, key.callers) == (WINDOW_MS, ("*",), frozenset(Caller))


def test_the_names_of_kip_507_are_understood(tmp_path: Path) -> None:
    """The settings of KIP-507 and of muster are read, and the next key follows them."""
    content = {
        "inter.worker.key.generation.algorithm": "HmacSHA512",
        "inter.worker.key.size": 256,
        "inter.worker.key.ttl.ms": 1000,
        "inter.worker.signature.algorithm": "HmacSHA384",
        "inter.worker.verification.algorithms": "HmacSHA256, HmacSHA384",
        "signature.window.ms": 1234,
        "signature.required": [{"groups": ["a", "b*"], "from_ms": 5, "until_ms": 9}],
        "keys": [ROW],
    }
    ring = keyring_file.read(written(tmp_path / "k", content))
    assert ring.required == (Requirement(("a", "b*"), 5, 9),)
    after = keyring_file.parsed(rotation.rotated({**content, "keys": [ROW]}, T), "k")
    new = after.keys[0]
    assert (new.algorithm, new.window_ms, len(new.secret)) == ("HmacSHA384", 1234, 32)


FAULTS: list[tuple[object, str]] = [
    ([], "a JSON object with keys"),
    ({}, "keys: a list with at least one key"),
    ({"keys": [ROW], "kez": 1}, "expected no key 'kez'; known: .*keys"),
    ({"keys": [{"id": "k"}]}, r"keys\[0\]: an object with id and secret"),
    ({"keys": [{**ROW, "secret": "?"}]}, r"keys\[0\]\.secret: base64"),
    ({"keys": [{**ROW, "secret": "c2hvcnQ="}]}, "a secret of at least 16 bytes"),
    ({"keys": [{**ROW, "id": "a b"}]}, "a key id of 1 to 64 letters"),
    ({"keys": [ROW, ROW]}, "ids that differ"),
    ({"keys": [{**ROW, "callers": ["boss"]}]}, "some of member, exporter, operator, clock"),
    ({"keys": [{**ROW, "from_ms": 9, "until_ms": 8}]}, "until_ms not before from_ms"),
    ({"keys": [{**ROW, "from_ms": -1}]}, r"keys\[0\]\.from_ms: a whole number"),
    ({"keys": [{**ROW, "algorithm": "HmacSHA512"}]}, "one of inter.worker.verification.algorithms"),
    ({"keys": [{**ROW, "colour": 1}]}, r"no key 'keys\[0\]\.colour'; known: id, secret"),
    ({"keys": [ROW], "inter.worker.key.size": 100}, "bits, 128 to 4096"),
    ({"keys": [ROW], "inter.worker.signature.algorithm": "MD5"}, "one of HmacSHA256"),
    (
        {"keys": [ROW], "inter.worker.verification.algorithms": ["HmacSHA512"]},
        "HmacSHA256 among them",
    ),
    ({"keys": [ROW], "signature.required": ["*"]}, r"signature.required\[0\]: an object"),
]


@pytest.mark.parametrize(("content", "said"), FAULTS)
def test_a_fault_is_named_and_no_secret_is(tmp_path: Path, content: object, said: str) -> None:
    """The error names the place of the fault and never a secret."""
    with pytest.raises(ConfigError, match=said) as error:
        keyring_file.read(written(tmp_path / "k", content))
    assert SECRET not in str(error.value)


RUBBISH: list[object] = [None, 1, -1, 0.5, True, "", "x", [], {}, [[]], [{}], {"a": 1}, 2**60]


def test_any_json_is_a_keyring_or_an_error(tmp_path: Path) -> None:
    """With any field replaced by any JSON value the result is a keyring or a ConfigError."""
    required = {"groups": ["*"], "from_ms": 5, "until_ms": 9}
    whole = {**keyring_file.DEFAULTS, "signature.required": [required], "keys": [ROW]}
    key = {**ROW, "algorithm": "HmacSHA256", "from_ms": 1, "until_ms": None, "window_ms": 1}
    key |= {"groups": ["*"], "callers": ["member"]}
    messages: list[str] = []
    for rubbish in RUBBISH:
        contents = [{**whole, name: rubbish} for name in whole]
        contents += [{**whole, "keys": [{**key, name: rubbish}]} for name in key]
        contents += [
            {**whole, "signature.required": [{**required, name: rubbish}]} for name in required
        ]
        for content in contents:
            try:
                keyring_file.parsed(content, tmp_path)
            except ConfigError as error:
                messages.append(str(error))
    assert len(messages) > len(RUBBISH)
    assert SECRET not in "".join(messages)


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"\xff", "not UTF-8"), (b"{", "at line 1, column 2"), (None, "No such file")],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, data: bytes | None, said: str) -> None:
    """Bytes that are not JSON, and a missing file, give an error that says so."""
    path = tmp_path / "k"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=said):
        KeyFile(str(path))


def test_a_changed_file_is_followed_and_a_lost_one_leaves_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A changed file is read again; a broken or lost one keeps its keys and is logged once."""
    monkeypatch.setattr(followed_key_file, "LOOK_EVERY_S", 0.0)
    path = tmp_path / "k"
    file = KeyFile(written(path, {"keys": [ROW]}))

    def ids() -> list[str]:
        return [key.id for key in file.current().keys]

    assert ids() == ["k"]
    rotation.write(path, {"keys": [{**ROW, "id": "k2"}]})
    assert ids() == ["k2"]
    caplog.clear()  # another test may have changed the loggers
    with caplog.at_level(logging.ERROR):
        path.write_text("half of a fi")
        assert (ids(), ids()) == (["k2"], ["k2"])
        path.unlink()
        assert (ids(), ids()) == (["k2"], ["k2"])
    wrong = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert [text.partition(":")[0] for text in wrong] == ["the keys read before stay in force"] * 2
    assert SECRET not in caplog.text
    rotation.write(path, {"keys": [{**ROW, "id": "k3"}]})
    assert ids() == ["k3"]


def test_a_file_that_could_not_be_read_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that this process may not read at first is read as soon as it may.

    The same fault is logged once, another one again.
    """
    monkeypatch.setattr(followed_key_file, "LOOK_EVERY_S", 0.0)
    path = tmp_path / "k"
    file = KeyFile(written(path, {"keys": [ROW]}))
    caplog.clear()

    def tried(fault: str) -> None:
        def denied(_: str) -> Any:
            raise ConfigError("keyring", str(path), fault)

        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
            patch.setattr(followed_key_file, "read", denied)
            for _ in range(3):
                assert [key.id for key in file.current().keys] == ["k"]

    rotation.write(path, {"keys": [{**ROW, "id": "k2"}]})
    tried("a readable keyring (Permission denied)")
    tried("a readable keyring (Input/output error)")
    wrong = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(wrong) == 2
    assert [key.id for key in file.current().keys] == ["k2"]


def test_a_file_with_its_former_time_and_size_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that keeps times (`cp -p`, `rsync -t`) onto the file is noticed."""
    monkeypatch.setattr(followed_key_file, "LOOK_EVERY_S", 0.0)
    path = tmp_path / "k"
    file = KeyFile(written(path, {"keys": [ROW]}))
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # until the file system's clock ticks
        written(path, {"keys": [{**ROW, "id": "l"}]})
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [key.id for key in file.current().keys] == ["l"]


def test_without_a_keyring_a_record_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without option and variable the record is not changed."""
    monkeypatch.delenv(followed_key_file.VARIABLE, raising=False)
    record = encode(DRAIN)
    assert key_file_of(None) is None
    assert signed(None, record, DRAIN, "muster.membership") is record


def test_a_record_is_signed_among_its_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable's keyring adds a valid signature header; key, value and headers stay."""
    monkeypatch.setenv(followed_key_file.VARIABLE, written(tmp_path / "k", {"keys": [ROW]}))
    keys = key_file_of(None)
    assert keys is not None
    plain = encode(DRAIN)
    record = signed(keys, plain, DRAIN, "muster.membership")
    assert (record.key, record.value, record.headers[:-1]) == plain
    name, signature = record.headers[-1]
    assert name == HEADER
    at_ms = int.from_bytes(signature[2:10], "big")
    verifier = Verifier(keys.current(), "g", "muster.membership", record.key)
    assert verifier.verdict(Caller.OPERATOR, record.value, signature, at_ms) is None


def test_secrets_are_written_to_no_file_that_was_there(tmp_path: Path) -> None:
    """Another user, or an earlier process, may have made the file that is renamed in the end."""
    path = tmp_path / "k"
    left_over = tmp_path / f".k.{os.getpid()}"
    left_over.touch()
    with left_over.open() as of_another:
        rotation.write(path, {"keys": [ROW]})
        assert of_another.read() == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["k"]


# ---- keys that come and go --------------------------------------------------------------------


def test_all_who_sign_use_a_key_that_all_who_verify_have() -> None:
    """In three rotations each signer's key is known to a verifier whose file differs by a spread.

    The verifier's key must not end before records that are under way arrive.
    """
    spread_ms = rotation.SPREAD_MS
    files = [(0, rotation.new_key({}, T))]
    for step in (1, 2, 3):
        at_ms = step * 600_000
        files.append((at_ms, rotation.rotated(files[-1][1], T + at_ms)))

    def file(at_ms: int) -> Any:
        return keyring_file.parsed([f for since, f in files if since <= max(at_ms, 0)][-1], "k")

    for now_ms in range(0, 2_400_000, 10_000):
        newest, older = file(now_ms), file(now_ms - spread_ms)
        for signs, verifies in ((newest, older), (older, newest)):
            key = signs.signer("g", Caller.MEMBER, T + now_ms)
            assert key is not None
            there = {k.id: k for k in verifies.keys}[key.id]
            until_ms = there.until_ms
            assert until_ms is None or until_ms >= T + now_ms + WINDOW_MS - spread_ms


def test_a_compromised_key_ends_when_the_new_one_signs() -> None:
    """Without an overlap the old key ends when the new one begins."""
    after = rotation.rotated(rotation.new_key({}, T), T + 1, spread_ms=5_000, overlap_ms=0)
    new, old = after["keys"]
    assert (new["from_ms"], old["until_ms"]) == (T + 5_001, T + 5_001)


def test_every_compromised_key_ends_when_the_new_one_signs() -> None:
    """A key that an earlier rotation has replaced ends then, too, and so does one yet to begin."""
    before = rotation.rotated(rotation.new_key({}, T), T + 1_000)
    after = rotation.rotated(before, T + 2_000, spread_ms=5_000, overlap_ms=0)
    new, *old = keyring_file.parsed(after, "k").keys
    assert (new.from_ms, new.until_ms) == (T + 7_000, None)
    assert [key.until_ms for key in old] == [T + 7_000] * 2
    ring = keyring_file.parsed(after, "k")
    signers = [ring.signer("g", Caller.MEMBER, T + ms) for ms in (6_999, 7_000)]
    assert [key.id for key in signers if key] == [old[-1].id, new.id]
    again = rotation.rotated(after, T + 2_000, spread_ms=9_000, overlap_ms=0)
    assert {row["until_ms"] for row in again["keys"][2:]} == {T + 7_000}


def test_each_scope_rotates_by_itself_when_it_is_due() -> None:
    """With `only_due` only the key that is older than the TTL is replaced."""
    both = rotation.new_key({}, T, callers=["member"])
    both = rotation.new_key(both, T + 3_000_000, callers=["operator"])
    assert rotation.rotated(both, T + 3_599_999, only_due=True) == both
    after = rotation.rotated(both, T + 3_600_000, only_due=True)
    assert [row["callers"] for row in after["keys"]] == [["member"], ["operator"], ["member"]]
    never = {**both, "inter.worker.key.ttl.ms": 0}
    assert rotation.rotated(never, T + 10**10, only_due=True) == never


def test_long_ended_keys_are_dropped() -> None:
    """A key is dropped `KEPT_MS` after its end, not earlier."""
    after = rotation.rotated(rotation.new_key({}, T), T)
    end_ms = after["keys"][1]["until_ms"]
    kept = rotation.rotated(after, end_ms + rotation.KEPT_MS - 1)
    gone = rotation.rotated(after, end_ms + rotation.KEPT_MS)
    assert (len(kept["keys"]), len(gone["keys"])) == (3, 2)


# ---- muster keys ------------------------------------------------------------------------------


def test_muster_keys_from_first_to_last(tmp_path: Path, capsys: Output) -> None:
    """`muster keys` creates, rotates, requires, exports and shows keys and prints no secret."""
    file, out = tmp_path / "ring.json", tmp_path / "members.json"

    def keys(*words: str) -> dict[str, Any]:
        assert main(["keys", words[0], str(file), *words[1:], "--format", "json"]) == 0
        printed = capsys.readouterr().out
        for path in (file, out):
            if path.exists():
                rows = json.loads(path.read_text())["keys"]
                assert [row["id"] for row in rows if row["secret"] in printed] == []
        listed: dict[str, Any] = json.loads(printed)
        return listed

    assert [key["state"] for key in keys("create", "--caller", "member")["keys"]] == ["signs"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    two = keys("create", "--caller", "operator", "--caller", "clock")["keys"]
    assert [(key["state"], key["callers"]) for key in two] == [
        ("new", ["clock", "operator"]),
        ("signs", ["member"]),
    ]
    states = [key["state"] for key in keys("rotate")["keys"]]
    assert states == ["new", "new", "new", "ending"]
    assert keys("rotate", "--if-due") == keys("show")
    (demand,) = keys("require", "--group", "orders*")["required"]
    assert (demand["groups"], demand["until_ms"]) == (["orders*"], None)
    (demand,) = keys("require", "--group", "orders*", "--off")["required"]
    assert demand["until_ms"] is not None
    exported = keys("export", "--caller", "member", "--to", str(out))["keys"]
    assert {tuple(key["callers"]) for key in exported} == {("member",)}
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert main(["keys", "show", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "MUST-SIGN" in printed
    assert [row for row in json.loads(file.read_text())["keys"] if row["secret"] in printed] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rotate"], "a readable keyring (No such file or directory)"),
        (["create", "--spread-ms", "-1"], "--spread-ms -1: expected 0 or more"),
    ],
)
def test_muster_keys_says_what_is_wrong(
    tmp_path: Path, capsys: Output, words: list[str], said: str
) -> None:
    """A fault gives exit code 2 and a message."""
    assert main(["keys", words[0], str(tmp_path / "none"), *words[1:]]) == 2
    assert said in capsys.readouterr().err


def test_a_keyring_that_cannot_be_written_is_named(tmp_path: Path, capsys: Output) -> None:
    """The folder of the file is missing: exit code 2, and the message names the file."""
    file = tmp_path / "none" / "ring.json"
    assert main(["keys", "create", str(file)]) == 2
    said = "cannot be written (No such file or directory)"
    assert capsys.readouterr().err == f"muster keys: {file}: {said}\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_rotation_by_root_leaves_the_file_to_its_owner(tmp_path: Path, capsys: Output) -> None:
    """Root's cron rotates a keyring of the user `muster`, whose processes go on reading it."""
    file = tmp_path / "keys.json"
    assert main(["keys", "create", str(file)]) == 0
    os.chown(file, 10001, 10002)
    assert main(["keys", "rotate", str(file)]) == 0
    after = file.stat()
    assert (after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == (10001, 10002, 0o600)


def test_muster_keys_refuses_what_would_be_of_no_use(tmp_path: Path, capsys: Output) -> None:
    """`require` without groups and `export` without file or keys are refused; no file changes."""
    file = tmp_path / "ring.json"
    assert main(["keys", "create", str(file)]) == 0
    before = file.read_bytes()
    for words, said in (
        (["require"], "require: give --group G"),
        (["export"], "export: give --to FILE"),
        (
            ["export", "--caller", "member", "--to", str(tmp_path / "o")],
            f"these; make one: muster keys create {file} --caller member",
        ),
    ):
        assert main(["keys", words[0], str(file), *words[1:]]) == 2
        assert said in capsys.readouterr().err
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["ring.json"]


def test_names_in_one_text_are_names_to_every_action(tmp_path: Path, capsys: Output) -> None:
    """`"groups": "orders,pay"` is read, rotated, exported and released as the list of both."""
    row = {**ROW, "groups": "orders, pay", "callers": "member,clock"}
    demand = {"groups": "orders,pay", "from_ms": 0}
    file = written(tmp_path / "ring.json", {"keys": [row], "signature.required": [demand]})
    assert main(["keys", "rotate", file, "--format", "json"]) == 0
    new, old = json.loads(capsys.readouterr().out)["keys"]
    assert (new["groups"], new["callers"]) == (["orders", "pay"], ["clock", "member"])
    assert old["until_ms"] is not None
    out = str(tmp_path / "out.json")
    export = ["keys", "export", file, "--group", "orders", "--group", "pay", "--to", out]
    assert main([*export, "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["keys"]) == 2
    off = ["keys", "require", file, "--group", "orders", "--group", "pay", "--off"]
    assert main([*off, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["required"][0]["until_ms"] is not None


def test_a_requirement_that_is_not_there_cannot_end(tmp_path: Path, capsys: Output) -> None:
    """`--off` for other groups than those of a requirement: those in force are named."""
    file = written(tmp_path / "ring.json", {"keys": [ROW]})
    assert main(["keys", "require", file, "--group", "orders"]) == 0
    before = Path(file).read_bytes()
    assert main(["keys", "require", file, "--group", "order", "--off"]) == 2
    said = "exactly the groups of a requirement in force (orders)"
    assert said in capsys.readouterr().err
    assert Path(file).read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rotate", "--group", "orders"], "rotate: --group is only for create, require, export"),
        (["rotate", "--caller", "member"], "rotate: --caller is only for create, export"),
        (["show", "--off"], "show: --off is only for require"),
        (["create", "--to", "x"], "create: --to is only for export"),
        (["rotate", "--compromised", "--if-due"], "--compromised replaces every key"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    tmp_path: Path, capsys: Output, words: list[str], said: str
) -> None:
    """`rotate --group orders` used to rotate every key."""
    file = written(tmp_path / "ring.json", {"keys": [ROW]})
    before = Path(file).read_bytes()
    assert main(["keys", words[0], file, *words[1:]]) == 2
    assert said in capsys.readouterr().err
    assert Path(file).read_bytes() == before


def test_two_changes_at_the_same_moment(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later of two changes that began with the same file is refused, and the first one stays.

    That holds for a new file as well.
    """
    file = tmp_path / "keys.json"
    write = rotation.write

    def second(*arguments: object) -> None:
        monkeypatch.setattr(rotation, "write", write)
        assert main(["keys", "create", str(file), "--caller", "clock"]) == 0
        write(*arguments)  # type: ignore[arg-type]

    for action, keys in (("create", 1), ("rotate", 2)):
        monkeypatch.setattr(rotation, "write", second)
        assert main(["keys", action, str(file)]) == 1
        said = capsys.readouterr().err
        assert f"{file}: another process changed it at the same moment; nothing was written" in said
        callers = [key["callers"] for key in json.loads(file.read_text())["keys"]]
        assert callers == [["clock"]] * keys
        assert [each.name for each in tmp_path.iterdir()] == ["keys.json"]


@pytest.mark.parametrize("to", ["keys.json", "link/keys.json"])
def test_a_keyring_is_not_exported_over_itself(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """`export` would drop the keys of all others from the keyring."""
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to(".")
    for caller in ("member", "clock"):
        assert main(["keys", "create", "keys.json", "--caller", caller]) == 0
    before = Path("keys.json").read_bytes()
    assert main(["keys", "export", "keys.json", "--caller", "member", "--to", to]) == 2
    assert "export: give --to FILE, the file to write" in capsys.readouterr().err
    assert Path("keys.json").read_bytes() == before
