"""Make, rotate and show the keys that events are signed with; no secret is ever printed.

create   makes a keyring, or a further key in it (--group, --caller: only for these)
rotate   replaces each key that signs; the old one ends when none of its events can be on its way
require  makes unsigned events of groups dead letters; --off ends that
export   writes a keyring for a client that signs less (--group, --caller) to another file
show     prints ids, times and what each key may sign

The first key of a new keyring signs at once. Later changes take effect after --spread-ms: by then
the file must have reached every process that uses it. Running processes read a changed file again.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from muster.cli.options import add_action, add_format, check_ms
from muster.errors import BadInput, ChangedMeanwhile
from muster.output import json_line, table, utc, wall_ms
from muster.protocol.keyring import Caller, Keyring
from muster.signing import keyring_file, rotation
from muster.signing.keyring_file import Document

_ACTIONS_OF = {
    "group": ("create", "require", "export"),
    "caller": ("create", "export"),
    "to": ("export",),
    "if-due": ("rotate",),
    "compromised": ("rotate",),
    "off": ("require",),
}
"""The actions that an option is for; with another one it would be ignored."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_action(
        parser,
        *("create", "rotate", "require", "export", "show"),
        help="create: make a keyring, or a further key in it. rotate: replace each key that signs."
        " require: refuse unsigned events of --group. export: write the keys for a client that"
        " signs less to another file. show: print ids, times and what each key may sign",
    )
    parser.add_argument("file", metavar="FILE", help="the keyring")
    parser.add_argument(
        "--group",
        action="append",
        metavar="G",
        help="create, require, export: for these groups; G* = all that begin with G; repeatable",
    )
    parser.add_argument(
        "--caller",
        action="append",
        choices=tuple(map(str, Caller)),
        help="create, export: who signs; may be repeated (default: all)",
    )
    parser.add_argument("--to", metavar="FILE", help="export: the file to write")
    parser.add_argument(
        "--spread-ms",
        type=int,
        default=rotation.SPREAD_MS,
        metavar="N",
        help="within N milliseconds the file reaches every process (default: %(default)s)",
    )
    parser.add_argument(
        "--if-due",
        action="store_true",
        help=f"rotate: leave keys alone that are younger than the file's {keyring_file.KEY_TTL_MS}",
    )
    parser.add_argument(
        "--compromised",
        action="store_true",
        help="rotate: a secret has leaked; the old keys end as soon as the new ones sign",
    )
    parser.add_argument("--off", action="store_true", help="require: end the requirement")
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Change or export the keyring, then show the result."""
    check_ms("--spread-ms", args.spread_ms)
    _refuse_idle(args)
    now_ms = wall_ms()
    path: str = args.file
    if args.action != "show":
        is_new = args.action == "create" and not Path(path).exists()
        before = None if is_new else keyring_file.document(path)
        after = _changed(args, before, now_ms)
        check: Callable[[], None] = partial(_check_unchanged, path, before)
        if args.action == "export":
            if not args.to or Path(args.to).resolve() == Path(path).resolve():
                raise BadInput("export: give --to FILE, the file to write, not the keyring itself")
            if not after[keyring_file.KEYS]:
                wanted = f"{args.file}{_words('group', args.group)}{_words('caller', args.caller)}"
                raise BadInput(
                    f"{args.file}: no key is only for these; make one: muster keys create {wanted}"
                )
            path, check = args.to, lambda: None
        keyring_file.parsed(after, path)
        try:
            rotation.write(path, after, check)
        except OSError as error:
            raise BadInput(f"{path}: cannot be written ({error.strerror})") from None
    ring = keyring_file.read(path)
    print(_as_json(ring, now_ms) if args.format == "json" else _as_text(ring, now_ms))
    return 0


def _refuse_idle(args: argparse.Namespace) -> None:
    """Refuse options that the action would ignore.

    Raises:
        BadInput: it names the option and what would be right.
    """
    for option, actions in _ACTIONS_OF.items():
        given = getattr(args, option.replace("-", "_"))
        if given and args.action not in actions:
            raise BadInput(f"{args.action}: --{option} is only for {', '.join(actions)}")
    if args.if_due and args.compromised:
        raise BadInput("rotate: --compromised replaces every key; leave --if-due out")


def _words(option: str, values: Sequence[str] | None) -> str:
    return "".join(f" --{option} {shlex.quote(value)}" for value in values or ())


def _check_unchanged(path: str, before: Document | None) -> None:
    """Check that the keyring is still what the change began with; None = there was none.

    Raises:
        ChangedMeanwhile: another process has changed it, and its change would be lost.
    """
    now = keyring_file.document(path) if Path(path).exists() else None
    if now != before:
        raise ChangedMeanwhile(
            f"{path}: another process changed it at the same moment; nothing was written: run the "
            "command again"
        )


def _changed(args: argparse.Namespace, document: Document | None, now_ms: int) -> Document:
    """The keyring's document after the action; None = there is none before it."""
    groups: Sequence[str] | None = args.group
    callers: Sequence[str] | None = args.caller
    later_ms = now_ms + args.spread_ms
    new_key = partial(
        rotation.new_key,
        now_ms=now_ms,
        groups=groups or ("*",),
        callers=callers or tuple(Caller),
    )
    if document is None:
        return new_key({})
    keyring_file.parsed(document, args.file)
    match args.action:
        case "create":
            return new_key(document, from_ms=later_ms)
        case "rotate":
            return rotation.rotated(
                document,
                now_ms,
                spread_ms=args.spread_ms,
                overlap_ms=0 if args.compromised else None,
                only_due=args.if_due,
            )
        case "export":
            return rotation.extract(document, groups, callers)
        case _ if not groups:
            raise BadInput("require: give --group G; --group '*' means all groups")
        case _:
            change = rotation.released if args.off else rotation.required
            return change(document, groups, later_ms)


def _as_text(ring: Keyring, now_ms: int) -> str:
    keys = [
        (
            key.id,
            rotation.state_of(key, now_ms),
            key.algorithm,
            utc(key.from_ms),
            utc(key.until_ms),
            ",".join(key.groups),
            ",".join(sorted(key.callers)),
        )
        for key in ring.keys
    ]
    text = table(("KEY", "STATE", "ALGORITHM", "FROM", "UNTIL", "GROUPS", "CALLERS"), keys)
    if not ring.required:
        return f"{text}\n\nunsigned events of every group are accepted"
    rows = [(",".join(r.groups), utc(r.from_ms), utc(r.until_ms)) for r in ring.required]
    return f"{text}\n\n{table(('MUST-SIGN', 'FROM', 'UNTIL'), rows)}"


def _as_json(ring: Keyring, now_ms: int) -> str:
    keys = [
        {
            "id": key.id,
            "state": rotation.state_of(key, now_ms),
            "algorithm": key.algorithm,
            "from_ms": key.from_ms,
            "until_ms": key.until_ms,
            "window_ms": key.window_ms,
            "groups": list(key.groups),
            "callers": sorted(key.callers),
        }
        for key in ring.keys
    ]
    required = [each._asdict() for each in ring.required]
    return json_line({"keys": keys, "required": required})
