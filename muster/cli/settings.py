"""Every setting in words, for `muster config describe` and docs/settings.md.

Settings of a group are in `protocol.settings`, those of the job in `streams.job_settings`; this
file gives both one form.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from muster.errors import BadInput
from muster.output import shown, table
from muster.protocol.setting_values import LONG_MAX, Value
from muster.protocol.settings import DEFAULT_ASSIGNOR, KEYS, SETTINGS, Setting
from muster.protocol.unknown_names import instead_of
from muster.streams import job_settings as job

GROUP, JOB = "group", "job"
SET_BY = {
    GROUP: "muster config set --group G --config K=V",
    JOB: "muster run --conf K=V",
}
EVERY_GROUP = "every group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A setting as a person reads it, all in words; the fields are the keys of ``--format json``.

    Attributes:
        scope: of a group or of the job.
        accepted: the bounds; empty = the type says it.
        used_by: the assignors that use it; None = it is of the job.
        condition: what must hold for it to have an effect; None = nothing.
        kafka: Kafka's name and where it is set there; None = Kafka has none.
    """

    setting: str
    scope: str
    type: str
    accepted: str
    default: str
    meaning: str
    used_by: str | None = None
    condition: str | None = None
    kafka: str | None = None


def described() -> list[Described]:
    """Every setting, those of a group first."""
    return [*map(_of_group, SETTINGS), *map(_of_job, job.SETTINGS)]


def one(key: str) -> Described:
    """The setting with that key.

    Raises:
        BadInput: no setting has that key; the message names a similar one, or what replaces it.
    """
    settings = {each.setting: each for each in described()}
    if key not in settings:
        near = difflib.get_close_matches(key, settings, n=1)
        hint = f"did you mean {near[0]}?" if near else instead_of(key, KEYS)
        raise BadInput(f"no setting {shown(key)}: {hint}")
    return settings[key]


def as_text(setting: Described) -> str:
    """One setting as text, one line per property that it has."""
    rows = [
        ("meaning", setting.meaning),
        ("type", setting.type),
        ("accepted", setting.accepted),
        ("default", setting.default),
        ("used by", setting.used_by),
        ("only where", setting.condition),
        ("in Kafka", setting.kafka),
        ("set by", SET_BY[setting.scope].replace("K=V", f"{setting.setting}=VALUE")),
    ]
    body = "\n".join(f"  {name:<10}  {text}" for name, text in rows if text)
    return f"{setting.setting}\n{body}"


def as_table(settings: Iterable[Described]) -> str:
    """Settings as a table, one row each."""
    return table(
        ("SETTING", "DEFAULT", "MEANING"), [(s.setting, s.default, s.meaning) for s in settings]
    )


def _of_group(setting: Setting) -> Described:
    users = setting.assignors
    return Described(
        setting=setting.key,
        scope=GROUP,
        type=setting.accepted.type or _type_of(setting),
        accepted=setting.accepted.bounds,
        default=_defaults(setting),
        meaning=setting.meaning,
        used_by=EVERY_GROUP if users is None else ", ".join(users) or "plug-ins",
        condition=setting.condition or None,
        kafka=setting.kafka or None,
    )


def _type_of(setting: Setting) -> str:
    plain = setting.default_for(DEFAULT_ASSIGNOR)
    return "a list" if isinstance(plain, tuple) else "a word"


def _defaults(setting: Setting) -> str:
    plain = setting.default_for(DEFAULT_ASSIGNOR)
    others: dict[str, list[str]] = {}
    for assignor, value in (setting.defaults or {}).items():
        others.setdefault(_shown(value), []).append(assignor)
    more = "; ".join(f"{', '.join(names)}: {value}" for value, names in others.items())
    return f"{_shown(plain)} ({more})" if more else _shown(plain)


def _shown(value: Value) -> str:
    if value is None:
        return "null"
    if value == LONG_MAX and not isinstance(value, bool):
        return f"{LONG_MAX} (never)"
    if isinstance(value, bool):
        return str(value).lower()
    return (",".join(value) or "none") if isinstance(value, tuple) else str(value)


def _of_job(setting: job.Setting) -> Described:
    kind, comma, bounds = setting.accepted.partition(", ")
    return Described(
        setting=setting.key,
        scope=JOB,
        type=kind,
        accepted=bounds if comma else "",
        default="none" if setting.default is None else str(setting.default),
        meaning=setting.meaning,
    )
