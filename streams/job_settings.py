"""Settings of the coordinator's process: read once, checked, frozen.

They come from the command line and from ``--conf K=V``. The first word of a key decides:
``spark.`` goes to Spark, ``kafka.`` to every Kafka client, ``muster.`` to a field of `JobConfig`.
Any other key is an error that names it. Settings of a *group* are not here: they arrive on the
config topic (`muster.protocol.settings`).

This module needs neither Spark nor Kafka, so it can be tested without them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from muster.kafka.client_settings import HIDDEN, ClientSettings, client_settings, is_secret
from muster.plugins import names_in
from muster.protocol.errors import ConfigError, UnknownSetting
from muster.protocol.tasks import GROUP_TASKS_MAX
from muster.protocol.topics import DEFAULT_PREFIX, INPUTS
from muster.protocol.unknown_names import nearest_of
from muster.schemas import WriterSchema, read_schemas

_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,200}")
_MASTER = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?|(spark|k8s)://.+|yarn")
DEFAULT_MASTER = "local[2]"
PREFIXES_MAX = 256 // len(INPUTS)
"""A packed row has one byte for the number of its topic (`streams.source`)."""

MASTER = "spark.master"
NEEDED: Mapping[str, tuple[str, str]] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "the operator requires this store",
    ),
    "spark.sql.ansi.enabled": (
        "false",
        "ANSI SQL refuses to cast numbers to bytes, which the query does to pack a row",
    ),
    "spark.sql.parser.escapedStringLiterals": (
        "false",
        "the query's pattern of control characters would match ordinary names of groups",
    ),
    "spark.speculation": (
        "false",
        "a second attempt of a task may write its records behind those of the next batch",
    ),
    "spark.python.use.daemon": (
        "true",
        "each batch would wait for a new Python process, in which no large placement ever ends",
    ),
    "spark.python.worker.reuse": (
        "true",
        "a large placement is computed aside over several batches, and the process keeps it",
    ),
}
"""Spark's settings that have to have one value, and why; the case of letters does not matter."""
DEPRECATED = frozenset({"spark.sql.parser.escapedStringLiterals"})
"""Those of them of which Spark warns where they are set; they have the right value by default."""
REPORTS = "spark.sql.streaming.numRecentProgressUpdates"
REPORTS_MIN = 2
"""Spark keeps one report less than it is told, and muster waits for one at a start."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One ``muster.`` key: its field in `JobConfig` with the default, and what it may be."""

    field: str
    default: object
    key: str
    read: Callable[[str], object]
    accepted: str
    meaning: str


class _Values(NamedTuple):
    """What a setting accepts: how its text is read (`ValueError` = not accepted), and in words."""

    read: Callable[[str], object]
    accepted: str


def _setting(key: str, default: object, values: _Values, meaning: str) -> Any:  # noqa: ANN401  any type
    """A field of `JobConfig` that a ``muster.`` key sets."""
    about = {"key": key, **values._asdict(), "meaning": meaning}
    return field(default=default, metadata=about)


def _whole(unit: str, low: int, high: int) -> _Values:
    """A whole number of some unit."""
    return _Values(_within(low, high), f"a whole number of {unit}, {low} to {high}")


def _within(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not low <= number <= high:
            raise ValueError(text)
        return number

    return read


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError(text)
    return share


def _canary_ms(text: str) -> int:
    return int(text) and _within(500, 86_400_000)(text)


def _schemas(text: str) -> tuple[WriterSchema, ...]:
    return read_schemas("muster.schemas", filter(None, text.split(",")))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """All settings of one coordinator process; `SETTINGS` says what each ``muster.`` key means.

    Attributes:
        clients: how to reach Kafka.
        prefixes: topic prefixes served, ascending; each is a separate installation of muster.
        checkpoint: folder or URL of Spark's checkpoint.
        master: Spark's master; None = spark-submit decided.
        spark: the user's own ``spark.`` settings; they win over muster's.
        standby: whether the process waits while another one is the coordinator.
        signing_keys: file of the keyring, which every executor reads at the same path; None =
            nothing is signed.
    """

    clients: ClientSettings = field(default_factory=ClientSettings)
    prefixes: tuple[str, ...] = (DEFAULT_PREFIX,)
    checkpoint: str
    master: str | None = DEFAULT_MASTER
    spark: Mapping[str, str] = field(default_factory=dict)
    standby: bool = False
    signing_keys: str | None = None
    rows_per_batch_max: int = _setting(
        "muster.batch.rows.max",
        20_000,
        _whole("rows", 1, 100_000_000),
        "rows one micro-batch reads at most",
    )
    group_bytes_max: int = _setting(
        "muster.group.bytes.max",
        32 << 20,
        _whole("bytes", 1 << 16, 1 << 30),
        "room a group may take in the checkpoint, for each of its two values",
    )
    group_tasks_max: int = _setting(
        "muster.group.tasks.max",
        1 << 18,
        _whole("tasks", 1, GROUP_TASKS_MAX),
        "tasks a group may declare; a config with more is refused",
    )
    assignor_ms_max: int = _setting(
        "muster.assignor.ms.max",
        10_000,
        _whole("milliseconds", 1, 3_600_000),
        "how long a plug-in may take for a placement, whatever the group's assignor.timeout.ms: all"
        " groups of the batch wait for it",
    )
    group_cpu_ms: int = _setting(
        "muster.group.cpu.ms",
        60_000,
        _whole("milliseconds", 1_000, 3_600_000),
        "CPU time one group may take in a batch; beyond it the job ends, and the group is"
        " quarantined at the next start",
    )
    python_bytes_max: int = _setting(
        "muster.python.bytes.max",
        4 << 30,
        _whole("bytes", 1 << 28, 1 << 50),
        "memory a Python process of the job may take beyond what it has at first; a group that"
        " needs more is quarantined",
    )
    # A group whose snapshot is older, by the group's own clock, is published again.
    rebuild_ms: int = _setting(
        "muster.rebuild.ms",
        600_000,
        _whole("milliseconds", 1_000, 86_400_000),
        "how much of the heartbeats may have to be read again after a lost checkpoint",
    )
    check_share: float = _setting(
        "muster.check.share",
        0.01,
        _Values(_share, "a number from 0 (never) to 1 (always)"),
        "share of the changing batches after which the laws of a group are checked",
    )
    metrics_port: int | None = _setting(
        "muster.metrics.port",
        None,
        _Values(_within(0, 65_535), "a port number, 0 to 65535 (0 = any free one)"),
        "port of /metrics, /healthz and /readyz",
    )
    metrics_host: str = _setting(
        "muster.metrics.host",
        "0.0.0.0",  # noqa: S104  a container's probes come from outside
        _Values(str, "an address of this machine"),
        "interface of the metrics port",
    )
    metrics_groups_max: int = _setting(
        "muster.metrics.groups.max",
        200,
        _whole("groups", 0, 1_000_000),
        "groups with a label of their own in the metrics",
    )
    stall_ms: int = _setting(
        "muster.stall.ms",
        300_000,
        _whole("milliseconds", 1_000, 86_400_000),
        "how long the query may get nowhere before /healthz fails",
    )
    canary_ms: int = _setting(
        "muster.canary.interval.ms",
        10_000,
        _Values(_canary_ms, "0 (never), or a whole number of milliseconds, 500 to 86400000"),
        "how often the job writes an event of its own, whose answer it times",
    )
    discovery_ms: int = _setting(
        "muster.discovery.interval.ms",
        2_000,
        _whole("milliseconds", 100, 86_400_000),
        "how often the job looks at the topics that groups declare as tasks",
    )
    discovery_measure_ms: int = _setting(
        "muster.discovery.measure.ms",
        30_000,
        _whole("milliseconds", 100, 86_400_000),
        "how often it measures their load, where a weight is measured",
    )
    discovery_grace_ms: int = _setting(
        "muster.discovery.grace.ms",
        60_000,
        _whole("milliseconds", 0, 86_400_000),
        "how long a topic that has vanished keeps its tasks",
    )
    silence_ms: int = _setting(
        "muster.standby.silence.ms",
        3_000,
        _Values(
            _within(2_000, 600_000),
            "a whole number of milliseconds, 2000 (two signs of life) to 600000",
        ),
        "a standby coordinator claims when the coordinator was silent for so long while Kafka"
        " answered",
    )
    writers: tuple[WriterSchema, ...] = _setting(
        "muster.schemas",
        (),
        _Values(_schemas, "[ID=]FILE.avsc, several with commas between"),
        "schemas of other writers; one with a registry id is also read in Confluent's framing",
    )
    assignors: frozenset[str] = _setting(
        "muster.assignors",
        frozenset(),
        _Values(names_in, "module:Class, several with commas between"),
        "plug-ins a group's config may name by module:Class; registered ones need no mention",
    )

    @property
    def is_posix(self) -> bool:
        """Whether the checkpoint is on a local or POSIX file system."""
        return urlsplit(self.checkpoint).scheme in ("", "file")

    @property
    def cores(self) -> int | None:
        """Cores of a ``local[N]`` master; None when the master does not say."""
        local = re.match(r"local\[(\d+)", self.master or "")
        return int(local[1]) if local else None


SETTINGS = tuple(
    Setting(each.name, each.default or None, **each.metadata)
    for each in fields(JobConfig)
    if each.metadata
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}


def job_config(
    *,
    checkpoint: str | None,
    bootstrap: str | None = None,
    command_config: str | Path | None = None,
    master: str | None = DEFAULT_MASTER,
    prefixes: Sequence[str] = (),
    conf: Sequence[str] = (),
    signing_keys: str | None = None,
    standby: bool = False,
) -> JobConfig:
    """Read and check the options that the user gave.

    `master` is None when spark-submit has already decided; `conf` is every ``KEY=VALUE``. A
    ``spark.master`` among them wins.

    Raises:
        ConfigError: it names the key or option.
    """
    if not checkpoint:
        raise ConfigError("--checkpoint", checkpoint, "a folder (or URL) that survives restarts")
    spark, kafka, own = _sorted_out(conf)
    option, master = (MASTER, spark.pop(MASTER)) if MASTER in spark else ("--master", master)
    if master is not None and not _MASTER.fullmatch(master):
        raise ConfigError(option, master, "local[N], spark://HOST:PORT, yarn or k8s://URL")
    return JobConfig(
        clients=client_settings(bootstrap, command_config, kafka),
        prefixes=_checked_prefixes(prefixes or (DEFAULT_PREFIX,)),
        checkpoint=_folder("--checkpoint", checkpoint),
        master=master,
        spark=spark,
        signing_keys=None if signing_keys is None else _absolute("--signing-keys", signing_keys),
        standby=standby,
        **own,  # type: ignore[arg-type]  # each setting reads its field's type
    )


def _sorted_out(conf: Sequence[str]) -> tuple[dict[str, str], dict[str, str], dict[str, object]]:
    """The settings of Spark, of Kafka's clients, and muster's own by field of `JobConfig`."""
    spark: dict[str, str] = {}
    kafka: dict[str, str] = {}
    own: dict[str, object] = {}
    for item in conf:
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError("--conf", item, "KEY=VALUE")
        if key != key.strip():
            shown = HIDDEN if is_secret(key) else value
            raise ConfigError(key, shown, "KEY=VALUE without blanks around the =")
        if key.startswith("spark."):
            spark[key] = _spark_value(key, value)
        elif key.startswith("kafka."):
            if is_secret(key):
                accepted = "it in the file of --command-config: every user may list processes"
                raise ConfigError(key, HIDDEN, accepted)
            kafka[key] = value
        else:
            setting = _BY_KEY.get(key)
            if setting is None:
                raise UnknownSetting(key, None, _instead_of(key))
            try:
                own[setting.field] = setting.read(value)
            except ValueError:
                raise ConfigError(key, value, setting.accepted) from None
    return spark, kafka, own


def _instead_of(key: str) -> str:
    """What to write instead of a key that is not a setting of the job."""
    if key.startswith("muster."):
        return nearest_of(key, _BY_KEY)
    return (
        "keys begin with spark. (Spark's), kafka. (its clients') or muster.; muster config describe"
        " lists those of muster"
    )


def _spark_value(key: str, value: str) -> str:
    """A value that the user gives to Spark, unless muster cannot work with it."""
    needed, why = NEEDED.get(key, (None, ""))
    if needed is not None and value.strip().lower() != needed.lower():
        raise ConfigError(key, value, f"{needed}: {why}")
    if key == REPORTS and value.strip().isdecimal() and int(value) < REPORTS_MIN:
        raise ConfigError(key, value, f"{REPORTS_MIN} or more: muster reads these reports")
    return value


def _checked_prefixes(prefixes: Sequence[str]) -> tuple[str, ...]:
    for prefix in prefixes:
        if not _PREFIX.fullmatch(prefix):
            accepted = "letters, digits, '.', '_' and '-', at most 200 of them"
            raise ConfigError("--topic-prefix", prefix, accepted)
    distinct = tuple(sorted(set(prefixes)))
    if len(distinct) > PREFIXES_MAX:
        accepted = f"at most {PREFIXES_MAX} prefixes; start another job for the others"
        raise ConfigError("--topic-prefix", f"{len(distinct)} prefixes", accepted)
    return distinct


def _folder(option: str, path: str) -> str:
    """`_absolute`, of a folder that may not exist yet. Spark would say of a file what it cannot do.

    Raises:
        ConfigError: it is a file.
    """
    absolute = _absolute(option, path)
    if Path(absolute.removeprefix("file:")).is_file():
        raise ConfigError(option, path, "a folder (or URL), not a file")
    return absolute


def _absolute(option: str, path: str) -> str:
    """The path made absolute, because executors may have another working directory."""
    if urlsplit(path).scheme:
        return path
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError:
        accepted = "a path without ~: that user has no home directory"
        raise ConfigError(option, path, accepted) from None
