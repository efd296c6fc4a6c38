"""Whether Kafka lets a client in and lets it do its work; if not, why not, in words.

librdkafka tries again and again whatever the reason: a wrong password, a certificate that has
expired and a broker that is away look alike to a client that waits for an answer, and a topic
without ACLs looks like one that does not exist. `check` asks first: it logs in, compares what the
principal may do (KIP-430) with what its role needs (`muster.acls`), and raises an error that names
what is missing. `told` does the same for an error met later.

Job and command line end with that error; a worker logs it once and goes on trying.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, TopicMetadata

from muster import certificates
from muster.acls import Acl, Pattern, Resource, Role, acls_of
from muster.clients import ClientSettings
from muster.protocol.errors import MusterError
from muster.protocol.topics import DEFAULT_PREFIX, TOPICS, TopicKind

TIMEOUT_S = 60.0
SECOND_THOUGHT_S = 2.0
"""A refusal by one broker counts when no other has answered after this long."""
LOOK_S = 0.05
STEP_S = 0.5
_UNSEEN = " (or there is no such topic: Kafka does not say)"
_NOISE = re.compile(r"^\S+://\S+: | \(after .*\)$")
"""Where librdkafka met an error, and in what state."""
_LOGIN_CODES = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
_SILENCE = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT)
_ACL_CODES = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


class Refused(MusterError):
    """Kafka does not let this client in, or not do what it must.

    Operator action: the message names the login, the certificate or the ACLs.
    """


class Silent(MusterError):
    """Kafka did not answer in time.

    Operator action: check --bootstrap-server; is the broker up?
    """

    retriable = True


class NoTopics(MusterError):
    """Topics of muster's are not there.

    Operator action: `muster topics create`; the message names them.
    """


def check(
    clients: ClientSettings, role: Role, prefixes: Iterable[str], timeout_s: float = TIMEOUT_S
) -> dict[str, int]:
    """Log in, and see that the role's topics are there and may be used.

    Args:
        clients: how to reach Kafka.
        role: what the principal is going to do.
        prefixes: topic prefixes served.
        timeout_s: how long Kafka may take to answer.

    Returns:
        Partitions of every topic the role uses.

    Raises:
        Refused: wrong login, certificate, or missing ACLs.
        NoTopics: topics that are not there.
        Silent: no answer.
    """
    prefixes = tuple(prefixes)
    names = [name for prefix in prefixes for name in _topics_of(role, prefix)]
    gate = _Gate(clients, timeout_s)
    allowed, partitions, absent = gate.topics(names)
    missing: dict[str, list[Acl]] = {}
    for prefix in prefixes:
        for acl in acls_of(role, prefix):
            if acl.resource is Resource.GROUP:
                granted = gate.may_describe(f"{acl.name}check")
            else:
                granted = acl.name not in allowed or _has(allowed[acl.name], acl.operation)
            if not granted:
                missing.setdefault(prefix, []).append(acl)
    if missing:
        hint = _UNSEEN if any(operations == [] for operations in allowed.values()) else ""
        told_ = [_lacking(clients, role, p, acls, hint) for p, acls in missing.items()]
        raise Refused("; ".join(told_))
    if absent:
        of = dict.fromkeys(name.rpartition(".")[0] for name in absent)
        there = f"at {clients.bootstrap}; create them: {', '.join(map(create_command, of))}"
        raise NoTopics(f"no topic {', '.join(absent)} {there}")
    return partitions


def reach(clients: ClientSettings, timeout_s: float = TIMEOUT_S) -> None:
    """See that Kafka lets this client in.

    Raises:
        Refused: wrong login or certificate.
        Silent: no answer.
    """
    _Gate(clients, timeout_s).listed(None)


def topic(clients: ClientSettings, name: str, operation: str, timeout_s: float = TIMEOUT_S) -> int:
    """See that one topic is there and may be used.

    Args:
        clients: how to reach Kafka.
        name: of the topic.
        operation: READ or WRITE.
        timeout_s: how long Kafka may take to answer.

    Returns:
        How many partitions it has.

    Raises:
        Refused, NoTopics, Silent: as `check`.
    """
    gate = _Gate(clients, timeout_s)
    found = gate.listed(name)
    error = None if found is None else found.error
    if error is not None and error.code() in _ACL_CODES:
        raise Refused(lacking(clients, name, operation) + _UNSEEN)
    if found is None or error is not None or not found.partitions:
        prefix, _, kind = name.rpartition(".")
        ours = f"; make it with: {create_command(prefix)}" if kind in set(TopicKind) else ""
        raise NoTopics(f"no topic {name!r} at {clients.bootstrap}{ours}")
    return len(found.partitions)


def create_command(prefix: str) -> str:
    """The command that makes the topics of a prefix."""
    return "muster topics create" + (
        f" --topic-prefix {prefix}" if prefix != DEFAULT_PREFIX else ""
    )


def lacking(clients: ClientSettings, topic_name: str, operation: str) -> str:
    """The words for one missing right on one topic."""
    acl = Acl(Resource.TOPIC, topic_name, Pattern.LITERAL, operation)
    return f"{principal_of(clients)} lacks {acl}"


def why(clients: ClientSettings, role: Role, prefixes: Iterable[str]) -> str | None:
    """What Kafka refuses, asked after something went wrong; None when it is not that."""
    with suppress(Silent):
        try:
            check(clients, role, prefixes, timeout_s=10)
        except (Refused, NoTopics) as refusal:
            return str(refusal)
    return None


@contextmanager
def fatal_named() -> Iterator[None]:
    """Let a producer's fatal error out as what it is.

    The client raises it in whatever call happens to serve its callbacks, and a callback that is
    called then turns it into a `SystemError` of which it is only the cause.

    Raises:
        KafkaException: the fatal error.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


def told(error: KafkaError, clients: ClientSettings, role: Role, prefix: str) -> str | None:
    """What an error of a running client means; None when it is no refusal.

    May open a connection of its own, to look at the broker's certificate.
    """
    if error.code() in _ACL_CODES:
        text = clients.hidden(str(error.str()))
        return why(clients, role, (prefix,)) or f"{principal_of(clients)} is refused: {text}"
    return _refusal(error, clients) if _is_closed(error) else None


def principal_of(clients: ClientSettings) -> str:
    """Who the cluster takes this client for, as far as it can be known from here."""
    spoken = clients.librdkafka()
    user = spoken.get("sasl.username") or spoken.get("sasl.kerberos.principal")
    if user is not None:
        return f"User:{user}"
    own = (c for c in certificates.own(clients) if "ssl.ca" not in c.where)
    mine = next(own, None)
    return "this client" if mine is None else f"User:{mine.subject}"


class _Gate:
    """An admin client that notices refusals at once instead of waiting for its timeout."""

    def __init__(self, clients: ClientSettings, timeout_s: float) -> None:
        self._clients = clients
        self._heard: list[KafkaError] = []
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        config: dict[str, Any] = {**clients.librdkafka(), "log_level": 0}
        config["error_cb"] = self._heard.append
        self._admin = AdminClient(config)

    def topics(
        self, names: Sequence[str]
    ) -> tuple[dict[str, list[AclOperation] | None], dict[str, int], list[str]]:
        """Topic → what may be done with it, topic → partitions, and topics that are not there.

        Operations are None where the broker does not say (it has no authorizer, or is older).
        """
        allowed: dict[str, list[AclOperation] | None] = {}
        partitions: dict[str, int] = {}
        absent: list[str] = []
        futures = self._admin.describe_topics(
            TopicCollection(list(names)),
            include_authorized_operations=True,
            request_timeout=self._timeout_s,
        )
        self._await(lambda: all(future.done() for future in futures.values()))
        for name, future in futures.items():
            try:
                answer = future.result()
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    allowed[name] = []
                elif reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    absent.append(name)
                else:
                    raise self._silent(reason) from None
                continue
            allowed[name] = answer.authorized_operations
            partitions[name] = len(answer.partitions)
        return allowed, partitions, sorted(absent)

    def listed(self, name: str | None) -> TopicMetadata | None:
        """What the cluster says of a topic; with None it is only asked whether it answers."""
        found: list[TopicMetadata | None] = []

        def asked() -> bool:
            # It hears of no refusal while it waits, so it waits in small steps.
            try:
                topics = self._admin.list_topics(name, timeout=STEP_S).topics
                found.append(topics.get(name) if name is not None else None)
            except KafkaException as error:
                if error.args[0].code() not in _SILENCE:
                    raise self._silent(error.args[0]) from None
            return bool(found)

        self._await(asked)
        return found[0]

    def may_describe(self, group: str) -> bool:
        """Whether a consumer group, which need not exist, may be described."""
        (future,) = self._admin.describe_consumer_groups(
            [group], request_timeout=self._timeout_s
        ).values()
        self._await(future.done)
        error = future.exception()
        reason = error.args[0] if isinstance(error, KafkaException) else None
        return reason is None or reason.code() != KafkaError.GROUP_AUTHORIZATION_FAILED

    def _await(self, done: Callable[[], bool]) -> None:
        refused_s: float | None = None
        while not done():
            self._admin.poll(LOOK_S)
            now = time.monotonic()
            refusal = next(filter(_is_closed, self._heard), None)
            if refusal is not None:
                refused_s = refused_s or now
                if now > min(refused_s + SECOND_THOUGHT_S, self._deadline):
                    raise Refused(_refusal(refusal, self._clients))
            if now > self._deadline:
                raise self._silent(self._heard[0] if self._heard else None)

    def _silent(self, reason: KafkaError | None) -> MusterError:
        why = f" ({self._clients.hidden(str(reason.str()))})" if reason is not None else ""
        return Silent(
            f"Kafka at {self._clients.bootstrap}: no answer within {self._timeout_s:g} s{why}"
        )


def is_refusal(error: KafkaError) -> bool:
    """Whether an error is one that trying again alone does not cure."""
    return error.code() in _ACL_CODES or _is_closed(error)


def _is_closed(error: KafkaError) -> bool:
    """Whether the door is closed: login or TLS."""
    code = error.code()
    tls = code == KafkaError._TRANSPORT and "SSL" in str(error.str())
    return code in _LOGIN_CODES or code == KafkaError._SSL or tls


def _refusal(error: KafkaError, clients: ClientSettings) -> str:
    text = clients.hidden(str(error.str()))
    if error.code() in _LOGIN_CODES:
        return _login_refused(clients, text)
    return _tls_refused(clients, text)


def _login_refused(clients: ClientSettings, text: str) -> str:
    spoken = clients.librdkafka()
    mechanism = spoken.get("sasl.mechanism", spoken.get("sasl.mechanisms", "SASL"))
    where = "sasl.jaas.config" if "sasl.jaas.config" in clients.values else "sasl.password"
    said = _NOISE.sub("", text)
    return (
        f"Kafka at {clients.bootstrap} refuses the login of {principal_of(clients)} ({mechanism}): "
        f"{said}; check {where}: user name and password"
    )


def _tls_refused(clients: ClientSettings, text: str) -> str:
    now = datetime.now(UTC)
    found = certificates.involved(clients)
    faults = [fault for each in found if (fault := each.fault(now)) is not None]
    said = _NOISE.sub("", text)
    if faults:
        return f"Kafka at {clients.bootstrap}, TLS: {'; '.join(faults)} ({said})"
    accepted = "check ssl.truststore.* (who signed the broker's certificate) and ssl.keystore.*"
    return f"Kafka at {clients.bootstrap}, TLS: {said}; {accepted}"


def _topics_of(role: Role, prefix: str) -> list[str]:
    names = {acl.name for acl in acls_of(role, prefix) if acl.resource is Resource.TOPIC}
    return [name for topic in TOPICS if (name := topic.name(prefix)) in names]


def _has(allowed: list[AclOperation] | None, operation: str) -> bool:
    return allowed is None or AclOperation[operation] in allowed


def _lacking(
    clients: ClientSettings, role: Role, prefix: str, missing: list[Acl], hint: str
) -> str:
    who = principal_of(clients)
    grant = f"--{role}-principal '{who if who.startswith('User:') else 'User:NAME'}'"
    return (
        f"{who} lacks {', '.join(map(str, missing))}{hint}; "
        f"grant: muster topics create --acls --topic-prefix {prefix} {grant}"
    )
