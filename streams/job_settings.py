"""Settings of the coordinator's process: read once, checked, frozen.

They come from the command line and from ``--conf K=V``. The first word of a key decides:
``spark.`` goes to Spark, ``kafka.`` to every Kafka client, ``muster.`` is in `SETTINGS` below.
Any other key is an error that names it. Settings of a *group* are not here: they arrive on the
config topic (`muster.protocol.settings`).

This module needs neither Spark nor Kafka, so it can be tested without them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import urlsplit

from muster.kafka.settings import HIDDEN, ClientSettings, client_settings, is_secret
from muster.plugins import names_in
from muster.protocol.errors import ConfigError
from muster.protocol.rows import GROUP_TASKS_MAX
from muster.protocol.topics import DEFAULT_PREFIX, INPUTS
from muster.schemas import WriterSchema, read_schemas

_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,200}")
_MASTER = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?|(spark|k8s)://.+|yarn")
DEFAULT_MASTER = "local[2]"
PREFIXES_MAX = 256 // len(INPUTS)
"""A packed row has one byte for the number of its topic (`streams.source`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """All settings of one coordinator process.

    Attributes:
        clients: how to reach Kafka.
        prefixes: topic prefixes served, ascending; each is a separate installation of muster.
        checkpoint: folder or URL of Spark's checkpoint.
        master: Spark's master; None = spark-submit decided.
        spark: the user's own ``spark.`` settings; they win over muster's.
        rows_per_batch_max: most rows that one micro-batch reads.
        group_bytes_max: most bytes that each of the two stored values of a group may take.
        group_tasks_max: most tasks that a group may declare.
        assignor_ms_max: longest time that a plug-in may take for a placement, in milliseconds; a
            group's `assignor.timeout.ms` can only be shorter.
        group_cpu_ms: CPU time that one group may take in a batch, in milliseconds.
        python_bytes_max: address space that a Python process of the job may take beyond its first
            size, in bytes.
        rebuild_ms: a group whose snapshot is older (by its own clock) is published again, so that
            a coordinator without a checkpoint reads at most this much of heartbeats again.
        check_share: share of the batches that change a group after which the group is checked
            against all invariants.
        metrics_port: port of ``/metrics``, ``/healthz`` and ``/readyz``; None = no port.
        metrics_host: the interface of that port.
        metrics_groups_max: most groups that have a label of their own; the others share one.
        stall_ms: how long the query may make no progress before ``/healthz`` reports a stall.
        standby: whether the process waits while another one is the coordinator.
        silence_ms: a standby claims when the coordinator has written no sign of life for so long.
        canary_ms: time between two canary ticks of the job (`canary`); 0 = there are none.
        discovery_ms, discovery_measure_ms, discovery_grace_ms: see `discovery.Pace`.
        writers: schemas of other writers of the input topics, read from their files.
        assignors: plug-ins ``module:Class`` that a group's config may name although they are not
            registered under an entry point.
        signing_keys: file of the keyring, which every executor reads at the same path; None =
            nothing is signed.
    """

    clients: ClientSettings = field(default_factory=ClientSettings)
    prefixes: tuple[str, ...] = (DEFAULT_PREFIX,)
    checkpoint: str
    master: str | None = DEFAULT_MASTER
    spark: Mapping[str, str] = field(default_factory=dict)
    rows_per_batch_max: int = 20_000
    group_bytes_max: int = 32 << 20
    group_tasks_max: int = 1 << 18
    assignor_ms_max: int = 10_000
    group_cpu_ms: int = 60_000
    python_bytes_max: int = 4 << 30
    rebuild_ms: int = 600_000
    check_share: float = 0.01
    metrics_port: int | None = None
    metrics_host: str = "0.0.0.0"  # noqa: S104  a container's probes come from outside
    metrics_groups_max: int = 200
    stall_ms: int = 300_000
    canary_ms: int = 10_000
    discovery_ms: int = 2_000
    discovery_measure_ms: int = 30_000
    discovery_grace_ms: int = 60_000
    standby: bool = False
    silence_ms: int = 3_000
    writers: tuple[WriterSchema, ...] = ()
    assignors: frozenset[str] = frozenset()
    signing_keys: str | None = None

    @property
    def is_posix(self) -> bool:
        """Whether the checkpoint is on a local or POSIX file system."""
        return urlsplit(self.checkpoint).scheme in ("", "file")

    @property
    def cores(self) -> int | None:
        """Cores of a ``local[N]`` master; None when the master does not say."""
        local = re.match(r"local\[(\d+)", self.master or "")
        return int(local[1]) if local else None


@dataclass(frozen=True, slots=True)
class Setting:
    """One ``muster.`` key: its field in `JobConfig`, reader, accepted values and meaning."""

    key: str
    field: str
    read: Callable[[str], float | str | tuple[WriterSchema, ...] | frozenset[str]]
    accepted: str
    meaning: str

    @property
    def default(self) -> object:
        """The value when the key is not given; None = there is none."""
        (default,) = (each.default for each in fields(JobConfig) if each.name == self.field)
        return default or None


def _whole(low: int, high: int) -> Callable[[str], int]:
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
    return int(text) and _whole(500, 86_400_000)(text)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "muster.batch.rows.max",
        "rows_per_batch_max",
        _whole(1, 100_000_000),
        "a whole number of rows, 1 to 100000000",
        "rows one micro-batch reads at most",
    ),
    Setting(
        "muster.group.bytes.max",
        "group_bytes_max",
        _whole(1 << 16, 1 << 30),
        "a whole number of bytes, 65536 to 1073741824",
        "room a group may take in the checkpoint, for each of its two values",
    ),
    Setting(
        "muster.group.tasks.max",
        "group_tasks_max",
        _whole(1, GROUP_TASKS_MAX),
        f"a whole number of tasks, 1 to {GROUP_TASKS_MAX}",
        "tasks a group may declare; a config with more is refused",
    ),
    Setting(
        "muster.assignor.ms.max",
        "assignor_ms_max",
        _whole(1, 3_600_000),
        "a whole number of milliseconds, 1 to 3600000",
        "how long a plug-in may take for a placement, whatever the group's assignor.timeout.ms: all"
        " groups of the batch wait for it",
    ),
    Setting(
        "muster.group.cpu.ms",
        "group_cpu_ms",
        _whole(1_000, 3_600_000),
        "a whole number of milliseconds, 1000 to 3600000",
        "CPU time one group may take in a batch; beyond it the job ends, and the group is"
        " quarantined at the next start",
    ),
    Setting(
        "muster.python.bytes.max",
        "python_bytes_max",
        _whole(1 << 28, 1 << 50),
        "a whole number of bytes, 268435456 to 1125899906842624",
        "memory a Python process of the job may take beyond what it has at first; a group that"
        " needs more is quarantined",
    ),
    Setting(
        "muster.rebuild.ms",
        "rebuild_ms",
        _whole(1_000, 86_400_000),
        "a whole number of milliseconds, 1000 to 86400000",
        "how much of the heartbeats may have to be read again after a lost checkpoint",
    ),
    Setting(
        "muster.check.share",
        "check_share",
        _share,
        "a number from 0 (never) to 1 (always)",
        "share of the changing batches after which the laws of a group are checked",
    ),
    Setting(
        "muster.metrics.port",
        "metrics_port",
        _whole(0, 65_535),
        "a port number, 0 to 65535 (0 = any free one)",
        "port of /metrics, /healthz and /readyz",
    ),
    Setting(
        "muster.metrics.host",
        "metrics_host",
        str,
        "an address of this machine",
        "interface of the metrics port",
    ),
    Setting(
        "muster.metrics.groups.max",
        "metrics_groups_max",
        _whole(0, 1_000_000),
        "a whole number of groups, 0 to 1000000",
        "groups with a label of their own in the metrics",
    ),
    Setting(
        "muster.stall.ms",
        "stall_ms",
        _whole(1_000, 86_400_000),
        "a whole number of milliseconds, 1000 to 86400000",
        "how long the query may get nowhere before /healthz fails",
    ),
    Setting(
        "muster.canary.interval.ms",
        "canary_ms",
        _canary_ms,
        "0 (never), or a whole number of milliseconds, 500 to 86400000",
        "how often the job writes an event of its own, whose answer it times",
    ),
    Setting(
        "muster.discovery.interval.ms",
        "discovery_ms",
        _whole(100, 86_400_000),
        "a whole number of milliseconds, 100 to 86400000",
        "how often the job looks at the topics that groups declare as tasks",
    ),
    Setting(
        "muster.discovery.measure.ms",
        "discovery_measure_ms",
        _whole(100, 86_400_000),
        "a whole number of milliseconds, 100 to 86400000",
        "how often it measures their load, where a weight is measured",
    ),
    Setting(
        "muster.discovery.grace.ms",
        "discovery_grace_ms",
        _whole(0, 86_400_000),
        "a whole number of milliseconds, 0 to 86400000",
        "how long a topic that has vanished keeps its tasks",
    ),
    Setting(
        "muster.standby.silence.ms",
        "silence_ms",
        _whole(2_000, 600_000),
        "a whole number of milliseconds, 2000 (two signs of life) to 600000",
        "a standby claims when the coordinator was silent for so long while Kafka answered",
    ),
    Setting(
        "muster.schemas",
        "writers",
        lambda text: read_schemas("muster.schemas", filter(None, text.split(","))),
        "[ID=]FILE.avsc, several with commas between",
        "schemas of other writers; one with a registry id is also read in Confluent's framing",
    ),
    Setting(
        "muster.assignors",
        "assignors",
        names_in,
        "module:Class, several with commas between",
        "plug-ins a group's config may name by module:Class; registered ones need no mention",
    ),
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

    Args:
        checkpoint: ``--checkpoint``; required.
        bootstrap: ``--bootstrap-server``; None = from the properties file, else the default.
        command_config: ``--command-config``, a Java properties file.
        master: ``--master``; None when spark-submit has already decided.
        prefixes: every ``--topic-prefix``; none = the default one.
        conf: every ``--conf``, as ``KEY=VALUE``.
        signing_keys: ``--signing-keys``; None = nothing is signed.
        standby: ``--standby``.

    Raises:
        ConfigError: it names the key or option.
    """
    if not checkpoint:
        raise ConfigError("--checkpoint", checkpoint, "a folder (or URL) that survives restarts")
    if master is not None and not _MASTER.fullmatch(master):
        raise ConfigError("--master", master, "local[N], spark://HOST:PORT, yarn or k8s://URL")
    spark, kafka, own = _sorted_out(conf)
    return JobConfig(
        clients=client_settings(bootstrap, command_config, kafka),
        prefixes=_checked_prefixes(prefixes or (DEFAULT_PREFIX,)),
        checkpoint=_absolute(checkpoint),
        master=master,
        spark=spark,
        signing_keys=None if signing_keys is None else _absolute(signing_keys),
        standby=standby,
        **own,  # type: ignore[arg-type]  # each row of SETTINGS reads its field's type
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
        if key.startswith("spark."):
            spark[key] = value
        elif key.startswith("kafka."):
            if is_secret(key):
                accepted = "it in the file of --command-config: every user may list processes"
                raise ConfigError(key, HIDDEN, accepted)
            kafka[key] = value
        else:
            setting = _BY_KEY.get(key)
            if setting is None:
                raise ConfigError(key, value, f"spark.*, kafka.* or one of {', '.join(_BY_KEY)}")
            try:
                own[setting.field] = setting.read(value)
            except ValueError:
                raise ConfigError(key, value, setting.accepted) from None
    return spark, kafka, own


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


def _absolute(path: str) -> str:
    """The path made absolute, because executors may have another working directory."""
    if urlsplit(path).scheme:
        return path
    return str(Path(path).expanduser().absolute())
