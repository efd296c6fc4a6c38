"""The reasons of dead letters, each with its meaning and the operator's action.

A dead letter (`Rejected` on ``<prefix>.rejected``) is an event that changed nothing. Its reason is
a label of the metric ``muster_rejected_events_total``, and `muster doctor` counts by it.
docs/operations.md lists the reasons of this file. Readers accept other words too, because a newer
version may add some.
"""

from __future__ import annotations

from enum import StrEnum


class DeadLetter(StrEnum):
    """A reason.

    Attributes:
        meaning: what happened, for a person.
        action: what an operator does about it.
    """

    meaning: str
    action: str

    def __new__(cls, name: str, meaning: str, action: str) -> DeadLetter:
        """Make a text that also has a meaning and an action."""
        reason = str.__new__(cls, name)
        reason._value_ = name
        reason.meaning = meaning
        reason.action = action
        return reason

    UNDECODABLE = (
        "UNDECODABLE",
        "the bytes are not an event of this topic, or it declares or reports more than it may",
        "correct what the message names, where it is yours; else find who writes to the topic: the"
        " letter names topic, partition and offset",
    )
    UNKNOWN_MEMBER_ID = (
        "UNKNOWN_MEMBER_ID",
        "a drain or a lag names a member that is not in the group",
        "none, where the member has just gone; else correct the id in what writes it",
    )
    INVALID_REQUEST = (
        "INVALID_REQUEST",
        "a lag names a task that the group does not have, or an impossible number of offsets",
        "correct what reports the lag; the message names the task",
    )
    ASSIGNOR_FAILED = (
        "ASSIGNOR_FAILED",
        "the group's assignor raised an error, gave no valid answer or took too long; the group"
        " keeps the placement it has, and tries again at the next change or after"
        " `probing.rebalance.interval.ms`",
        "read the message; correct the plug-in, or choose another assignor: muster config set",
    )
    GROUP_FAILED = (
        "GROUP_FAILED",
        "the coordinator failed on the group and discarded all events of the group in this batch;"
        " the group keeps its last good state",
        "read the traceback in the message of the first letter, and report it; every batch of the"
        " group is tried anew",
    )
    QUARANTINED = (
        "QUARANTINED",
        "the group is quarantined: its events ended the process that worked on them, and no"
        " event of it is processed until it is released",
        "read the message of the first letter, correct what caused it, then: muster groups release"
        " --group G",
    )
    TOO_LARGE = (
        "TOO_LARGE",
        "the events of this batch would make the group larger than a group may be; it stays as it"
        " was",
        "find who fills the group: muster groups describe; the limit is muster.group.bytes.max",
    )
    TOO_MANY_GROUPS = (
        "TOO_MANY_GROUPS",
        "an event of a group without a config, behind very many such groups in one"
        " batch; members join again by themselves",
        "find who writes to so many groups; a group that is configured is never refused",
    )
    TOO_MUCH_AT_ONCE = (
        "TOO_MUCH_AT_ONCE",
        "the batch had accepted as many bytes of large events as it may, or the group had used up"
        " its credit; of many configs of a group only the newest are read",
        "find who writes so much to the group; members join again by themselves, write a"
        " refused config again",
    )
    LEFT_OUT = (
        "LEFT_OUT",
        "more dead letters than are written for one group or one batch; the message counts them",
        "find who writes so much that is refused; the letters before this one show samples",
    )
    UNSIGNED = (
        "UNSIGNED",
        "events of this group must be signed, and this one is not",
        "give the sender the keyring file",
    )
    WRONG_SIGNATURE = (
        "WRONG_SIGNATURE",
        "the signature does not fit the record: another secret, or the record was changed",
        "compare the sender's keyring file with the job's",
    )
    UNKNOWN_KEY = (
        "UNKNOWN_KEY",
        "the job's keyring has no key of that id",
        "bring the keyring file to the job",
    )
    KEY_NOT_ALLOWED = (
        "KEY_NOT_ALLOWED",
        "the key may not sign for this group, in this part or with this algorithm",
        "give the sender a key of its own scope: muster keys create",
    )
    KEY_RETIRED = (
        "KEY_RETIRED",
        "the key had ended when the broker took the record",
        "bring the new keyring file to the sender",
    )
    STALE_SIGNATURE = (
        "STALE_SIGNATURE",
        "the record was signed too long before, or after, the broker's time",
        "set the sender's clock; a record that is written again late is refused for this, too",
    )
    REPEATED_SIGNATURE = (
        "REPEATED_SIGNATURE",
        "this very record has counted before: it was written again",
        "find who writes it, where it is not a producer that repeats itself",
    )
    MALFORMED_SIGNATURE = (
        "MALFORMED_SIGNATURE",
        "the header is no signature",
        "correct the sender: protocol/GRAMMAR.md, section 10",
    )
