"""Grants principals the rights of a role: creates missing ACLs, removes none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from muster.errors import BadInput
from muster.kafka import access_check
from muster.kafka.acls import Acl, Resource, Role, acls_of
from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import TIMEOUT_S, admin, failures_named

ANY_HOST = "*"
_RESOURCE: Mapping[Resource, ResourceType] = {
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.GROUP: ResourceType.GROUP,
    # librdkafka's name for Kafka's resource type Cluster; the number on the wire is the same.
    Resource.CLUSTER: ResourceType.BROKER,
}


@dataclass(frozen=True, slots=True)
class Grant:
    """A right of a principal (``User:NAME``): ``created``, ``ok`` (it existed) or ``planned``."""

    principal: str
    acl: Acl
    status: str = "planned"


def create_acls(settings: ClientSettings, grants: Sequence[Grant]) -> list[Grant]:
    """Create the ACLs that are missing; returns all grants with their status.

    Raises:
        Refused: the principal may not (it needs ALTER and DESCRIBE on the cluster).
        BadInput: the cluster has no authorizer.
        Unreachable: no answer.
    """
    with failures_named(settings):
        client = admin(settings)
        try:
            existing = set(
                client.describe_acls(EVERY_ACL, request_timeout=TIMEOUT_S).result(TIMEOUT_S)
            )
            missing = [grant for grant in grants if _binding(grant) not in existing]
            bindings = [_binding(grant) for grant in missing]
            created = client.create_acls(bindings, request_timeout=TIMEOUT_S) if bindings else {}
            for future in created.values():
                future.result(TIMEOUT_S)
        except KafkaException as error:
            raise _explained(error, settings) from None
    return [
        Grant(grant.principal, grant.acl, "created" if grant in missing else "ok")
        for grant in grants
    ]


def _explained(error: KafkaException, settings: ClientSettings) -> Exception:
    code = error.args[0].code()
    if code == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
        who = access_check.principal_of(settings)
        needed = ", ".join(
            str(a) for a in acls_of(Role.ADMIN, "") if a.resource is Resource.CLUSTER
        )
        return access_check.Refused(f"{who} may not make ACLs; it needs {needed}")
    if code == KafkaError.SECURITY_DISABLED:
        return BadInput(f"--acls: {settings.bootstrap} has no authorizer (authorizer.class.name)")
    return error


_ANY: Any = None
"""The client's value for any name, principal or host, though its stubs require text."""
EVERY_ACL = AclBindingFilter(
    ResourceType.ANY,
    _ANY,
    ResourcePatternType.ANY,
    _ANY,
    _ANY,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


def _binding(grant: Grant) -> AclBinding:
    return AclBinding(
        _RESOURCE[grant.acl.resource],
        grant.acl.name,
        ResourcePatternType[grant.acl.pattern],
        grant.principal,
        ANY_HOST,
        AclOperation[grant.acl.operation],
        AclPermissionType.ALLOW,
    )
