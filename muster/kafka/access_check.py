"""Checks whether Kafka lets a client log in and do its work, and explains a refusal.

librdkafka retries after every error, so a client cannot tell a wrong password, an expired
certificate and an absent broker apart, and a topic without ACLs looks as if it did not exist.
`check` runs first: it logs in, compares the principal's rights (KIP-430) with those that its role
needs (`acls`), and raises an error that names the missing ones. `explained` does the same for an
error of a running client.

The job and the command line end with that error; a worker logs it and keeps trying.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, TopicMetadata

from muster.kafka import certificates
from muster.kafka.acls import Acl, Pattern, Resource, Role, acls_of
from muster.kafka.client_settings import ClientSettings
from muster.kafka.coordinator_request import CoordinatorRequest
from muster.kafka.refused_settings import refused
from muster.protocol.errors import MusterError
from muster.protocol.topics import DEFAULT_PREFIX, TOPICS, TopicKind

log = logging.getLogger("muster.kafka")

TIMEOUT_S = 60.0
SAY_S = 5.0
"""A check that may take the whole of that logs after this long that Kafka does not answer."""
SECOND_THOUGHT_S = 2.0
"""A refusal by one broker counts if no other broker has answered after this long."""
LOOK_S = 0.05
STEP_S = 0.5
_UNSEEN = " (or the topic does not exist: Kafka answers the same in both cases)"
_NOISE = re.compile(r"^\S+://\S+: | \(after .*\)$")
"""What librdkafka adds to an error: the broker's address and the connection's state."""
_NO_TLS = ("isconnected", "PLAINTEXT", "wrong version number")
"""Words of a failed handshake with which a port without TLS answers, among others."""
_LOGIN_CODES = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
_SILENCE = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT)
_ACL_CODES = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


class Refused(MusterError):
    """Kafka refuses this client's login, or an operation it needs.

    Operator action: the message names the login, the certificate or the ACLs.
    """


class Silent(MusterError):
    """Kafka did not answer in time.

    Operator action: check --bootstrap-server; is the broker up?
    """

    retriable = True


class NoTopics(MusterError):
    """Some of muster's topics do not exist.

    Operator action: `muster topics create`; the message names them.
    """


DISPENSABLE = ("DESCRIBE_CONFIGS",)
"""Rights without which a process does its work, and checks less. An older version did not ask for
them, so an upgrade must not end because of them."""


def check(
    clients: ClientSettings, role: Role, prefixes: Iterable[str], timeout_s: float = TIMEOUT_S
) -> dict[str, int]:
    """Log in, and check that the role's topics exist and may be used; return their counts.

    A count is the number of a topic's partitions.

    Raises:
        Refused: wrong login, certificate, or missing ACLs.
        NoTopics: topics that do not exist.
        Silent: no answer.
        BadInput: a client setting that librdkafka does not accept.
    """
    prefixes = tuple(prefixes)
    acls = {prefix: acls_of(role, prefix) for prefix in prefixes}
    names = [name for prefix in prefixes for name in _topics_of(role, prefix)]
    optional = {t.name(prefix) for prefix in prefixes for t in TOPICS if t.optional}
    admin = _Admin(clients, timeout_s)
    if any(acl.operation == "WRITE" for acl in chain.from_iterable(acls.values())):
        _check_producer(clients)
    allowed, partitions, absent = admin.topics(names)
    missing: dict[str, list[Acl]] = {}
    for prefix in prefixes:
        for acl in acls[prefix]:
            if acl.resource is Resource.GROUP:
                granted = admin.may_describe(f"{acl.name}check")
            else:
                granted = acl.name not in allowed or _has(allowed[acl.name], acl.operation)
            if not granted and acl.name not in optional and acl.operation not in DISPENSABLE:
                missing.setdefault(prefix, []).append(acl)
    if missing:
        hint = _UNSEEN if any(operations == [] for operations in allowed.values()) else ""
        reasons = [_lacking(clients, role, p, acls, hint) for p, acls in missing.items()]
        raise Refused("; ".join(reasons))
    absent = [name for name in absent if name not in optional]
    if absent:
        absent_prefixes = dict.fromkeys(name.rpartition(".")[0] for name in absent)
        commands = ", ".join(map(create_command, absent_prefixes))
        where = f"at {clients.bootstrap}; create them: {commands}"
        raise NoTopics(f"no topic {', '.join(absent)} {where}")
    return partitions


def missing(
    clients: ClientSettings, wanted: Sequence[Acl], timeout_s: float = TIMEOUT_S
) -> tuple[list[Acl], list[str]]:
    """The rights on topics that this client lacks, and the topics that do not exist.

    Raises:
        Refused: wrong login or certificate.
        Silent: no answer.
    """
    names = sorted({acl.name for acl in wanted})
    if not names:
        return [], []
    allowed, _, absent = _Admin(clients, timeout_s).topics(names)
    lacking = [a for a in wanted if a.name in allowed and not _has(allowed[a.name], a.operation)]
    return lacking, absent


def reach(clients: ClientSettings, timeout_s: float = TIMEOUT_S, waited_s: float = 0) -> None:
    """Check that this client can log in; for `waited_s` before, another client has tried it.

    Raises:
        Refused: wrong login or certificate.
        Silent: no answer.
    """
    _Admin(clients, timeout_s, waited_s).listed(None)


def topic(clients: ClientSettings, name: str, operation: str, timeout_s: float = TIMEOUT_S) -> int:
    """Check that one topic exists and may be used (READ or WRITE); return how many partitions.

    Raises:
        Refused, NoTopics, Silent: as `check`.
    """
    metadata = _Admin(clients, timeout_s).listed(name)
    error = None if metadata is None else metadata.error
    if error is not None and error.code() in _ACL_CODES:
        raise Refused(lacking(clients, name, operation) + _UNSEEN)
    if metadata is None or error is not None or not metadata.partitions:
        prefix, _, kind = name.rpartition(".")
        hint = f"; make it with: {create_command(prefix)}" if kind in set(TopicKind) else ""
        raise NoTopics(f"no topic {name!r} at {clients.bootstrap}{hint}")
    return len(metadata.partitions)


def create_command(prefix: str) -> str:
    """The command that creates the topics of a prefix."""
    return "muster topics create" + (
        f" --topic-prefix {prefix}" if prefix != DEFAULT_PREFIX else ""
    )


def lacking(clients: ClientSettings, topic_name: str, operation: str) -> str:
    """The message for one missing right on one topic."""
    acl = Acl(Resource.TOPIC, topic_name, Pattern.LITERAL, operation)
    return f"{principal_of(clients)} lacks {acl}"


def why(clients: ClientSettings, role: Role, prefixes: Iterable[str]) -> str | None:
    """After a failure: what Kafka refuses this client, as a message; None = nothing."""
    with suppress(Silent):
        try:
            check(clients, role, prefixes, timeout_s=10)
        except (Refused, NoTopics) as refusal:
            return str(refusal)
    return None


def lacking_group(clients: ClientSettings, prefix: str) -> str:
    """The message for the missing right on the consumer groups of a topic prefix."""
    acl = Acl(Resource.GROUP, f"{prefix}.", Pattern.PREFIXED, "DESCRIBE")
    return f"{principal_of(clients)} lacks {acl}, which every reader of these topics needs"


@contextmanager
def fatal_named() -> Iterator[None]:
    """Raise a producer's fatal error as a `KafkaException`.

    The client raises it in the call that serves its callbacks. If a callback runs at that time, it
    raises a `SystemError` instead, with the fatal error as its cause.

    Raises:
        KafkaException: the fatal error.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


def explained(error: KafkaError, clients: ClientSettings, role: Role, prefix: str) -> str | None:
    """The explanation of a running client's error; None if it is not a refusal.

    May open connections, to check the ACLs or to read the broker's certificate.
    """
    if error.code() in _ACL_CODES:
        text = clients.hidden(str(error.str()))
        return why(clients, role, (prefix,)) or f"{principal_of(clients)} is refused: {text}"
    return _refusal(error, clients) if _is_login_or_tls(error) else None


def principal_of(clients: ClientSettings) -> str:
    """The principal of this client, as far as its settings show it."""
    settings = clients.librdkafka()
    user = settings.get("sasl.username") or settings.get("sasl.kerberos.principal")
    if user is not None:
        return f"User:{user}"
    own = (c for c in certificates.own(clients) if "ssl.ca" not in c.where)
    certificate = next(own, None)
    return "this client" if certificate is None else f"User:{certificate.subject}"


def _check_producer(clients: ClientSettings) -> None:
    """Make a producer: some settings are accepted one by one, and not together (acks=1).

    Raises:
        BadInput: they are not accepted.
    """
    try:
        Producer(clients.producer({"log_level": 0}))
    except KafkaException as error:
        raise refused(clients, error) from None


class _Admin:
    """An admin client that raises a refusal soon, instead of waiting for its timeout.

    Raises:
        BadInput: a client setting that librdkafka does not accept.
    """

    def __init__(self, clients: ClientSettings, timeout_s: float, waited_s: float = 0) -> None:
        self._clients = clients
        self._waited_s = waited_s
        self._says_at = time.monotonic() + SAY_S if timeout_s >= TIMEOUT_S else math.inf
        self._errors: list[KafkaError] = []
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._config: dict[str, Any] = {**clients.librdkafka(), "log_level": 0}
        self._config["error_cb"] = self._errors.append
        try:
            self._admin = AdminClient(self._config)
        except KafkaException as error:
            raise refused(clients, error) from None

    def topics(
        self, names: Sequence[str]
    ) -> tuple[dict[str, list[AclOperation] | None], dict[str, int], list[str]]:
        """Topic → allowed operations, topic → number of partitions, and topics that do not exist.

        Operations are None if the broker does not return them (no authorizer, or an old broker).
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
        """A topic's metadata; with None, only wait until the cluster answers."""
        answers: list[TopicMetadata | None] = []

        def has_answered() -> bool:
            # `error_cb` does not run during `list_topics`, so it waits in small steps.
            try:
                topics = self._admin.list_topics(name, timeout=STEP_S).topics
                answers.append(topics.get(name) if name is not None else None)
            except KafkaException as error:
                if error.args[0].code() not in _SILENCE:
                    raise self._silent(error.args[0]) from None
            return bool(answers)

        self._await(has_answered)
        return answers[0]

    def may_describe(self, group: str) -> bool:
        """Whether the principal may describe a consumer group, which need not exist."""

        def send(client: AdminClient) -> Future[Any]:
            asked = client.describe_consumer_groups([group], request_timeout=self._timeout_s)
            future: Future[Any] = asked[group]
            return future

        request = CoordinatorRequest(self._config, send)
        self._await(request.answered)
        try:
            request.result(self._timeout_s)
        except KafkaException as error:
            return bool(error.args[0].code() != KafkaError.GROUP_AUTHORIZATION_FAILED)
        return True

    def _await(self, done: Callable[[], bool]) -> None:
        refused_s: float | None = None
        while not done():
            self._admin.poll(LOOK_S)
            now = time.monotonic()
            refusal = next(filter(_is_login_or_tls, self._errors), None)
            if refusal is not None:
                refused_s = refused_s or now
                if now > min(refused_s + SECOND_THOUGHT_S, self._deadline):
                    raise Refused(_refusal(refusal, self._clients))
            if now > self._deadline:
                raise self._silent(self._errors[0] if self._errors else None)
            if now > self._says_at:
                self._says_at = math.inf
                why = f" ({self._why(self._errors[0])})" if self._errors else ""
                place = self._clients.bootstrap, why, self._timeout_s
                log.warning("Kafka at %s does not answer%s: waits for it, at most %g s", *place)

    def _silent(self, reason: KafkaError | None) -> MusterError:
        why = f" ({self._why(reason)})" if reason is not None else ""
        if reason is None or reason.code() == KafkaError._ALL_BROKERS_DOWN:
            why += "; is it Kafka's port, and is security.protocol that of its listener?"
        return Silent(
            f"Kafka at {self._clients.bootstrap}: no answer within"
            f" {self._waited_s + self._timeout_s:.3g} s{why}"
        )

    def _why(self, reason: KafkaError) -> str:
        return self._clients.hidden(str(reason.str()))


def is_refusal(error: KafkaError) -> bool:
    """Whether an error goes away only when login, TLS or ACLs change."""
    return error.code() in _ACL_CODES or _is_login_or_tls(error)


def _is_login_or_tls(error: KafkaError) -> bool:
    code = error.code()
    tls = code == KafkaError._TRANSPORT and "SSL" in str(error.str())
    return code in _LOGIN_CODES or code == KafkaError._SSL or tls


def _refusal(error: KafkaError, clients: ClientSettings) -> str:
    text = clients.hidden(str(error.str()))
    if error.code() in _LOGIN_CODES:
        return _login_refused(clients, text)
    return _tls_refused(clients, text)


def _login_refused(clients: ClientSettings, text: str) -> str:
    settings = clients.librdkafka()
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "SASL"))
    key = "sasl.jaas.config" if "sasl.jaas.config" in clients.values else "sasl.password"
    reason = _NOISE.sub("", text)
    return (
        f"Kafka at {clients.bootstrap} refuses the login of {principal_of(clients)} ({mechanism}): "
        f"{reason}; check {key}: user name and password"
    )


def _tls_refused(clients: ClientSettings, text: str) -> str:
    now = datetime.now(UTC)
    involved = certificates.involved(clients)
    faults = [fault for certificate in involved if (fault := certificate.fault(now)) is not None]
    reason = _NOISE.sub("", text)
    if faults:
        return f"Kafka at {clients.bootstrap}, TLS: {'; '.join(faults)} ({reason})"
    hint = "check ssl.truststore.* (who signed the broker's certificate) and ssl.keystore.*"
    if any(word in reason for word in _NO_TLS):
        protocol = clients.librdkafka().get("security.protocol")
        hint = f"is it a TLS port, as security.protocol={protocol} expects? If it is: {hint}"
    return f"Kafka at {clients.bootstrap}, TLS: {reason}; {hint}"


def _topics_of(role: Role, prefix: str) -> list[str]:
    names = {acl.name for acl in acls_of(role, prefix) if acl.resource is Resource.TOPIC}
    return [name for topic in TOPICS if (name := topic.name(prefix)) in names]


def _has(allowed: list[AclOperation] | None, operation: str) -> bool:
    return allowed is None or AclOperation[operation] in allowed


def _lacking(
    clients: ClientSettings, role: Role, prefix: str, missing: list[Acl], hint: str
) -> str:
    principal = principal_of(clients)
    named = principal if principal.startswith("User:") else "User:NAME"
    return (
        f"{principal} lacks {', '.join(map(str, missing))}{hint}; "
        f"grant: muster topics create --acls --topic-prefix {prefix} --{role}-principal '{named}'"
    )
