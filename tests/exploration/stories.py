"""Orders of steps in which the code once broke a law, or in which a broken rule shows."""

from __future__ import annotations

LATE_JOIN = (
    "Kafka stores a join of A",
    "time passes, and something is late",
    "Kafka stores a join of B",
    "time passes, and something is late",
    "A sees the time",  # and sends its join again, within the lease that the first one may give
    "time passes, and something is late",
    "Kafka stores a join of A",  # when the session that began with the first join is over
    "coordinator 1 takes 1 events",
    "A reads A: active 0_0 (r1)",  # the session ended before the second join was acknowledged
    "A has stopped everything",
    "B sees the time",
    "Kafka stores a join of B",
    "coordinator 1 takes 3 events",  # the session of A has ended: 0_0 is another's
)
STRANGER = (
    "Kafka stores a join of B",
    "a second coordinator starts",
    "coordinator 2 takes 2 events",
    "B reads B: no tasks (r0, report)",
    "Kafka stores a report of B (r0: nothing)",
    "Kafka stores a join of A",  # which only the first coordinator reads
    "coordinator 2 takes 1 events",  # all tasks look free to it; it grants none yet
    "coordinator 1 takes 4 events",
    "coordinator 1 publishes late",
    "A reads A: active 0_0 (r1)",  # A has not heard of coordinator 2
    "coordinator 2 takes 1 events",
    "B reads B: no tasks (r1)",
)
BEATS = ("A sees the time", "Kafka stores a heartbeat of A")
BEATS += ("B sees the time", "Kafka stores a heartbeat of B")
DRAINED = 13
"""Steps of the next story until A has been asked to stop, and a heartbeat interval has passed."""
READ_AGAIN = (
    "Kafka stores a join of A, and will once more",
    "Kafka stores a join of B",
    "coordinator 1 takes 2 events",
    "A reads A: active 0_0 (r1)",
    "B reads B: no tasks (r1)",
    "an operator drains A",
    "coordinator 1 takes 1 events",  # A is to stop 0_0, and reads nothing from now on
    *("time passes, and something is late", *BEATS, "coordinator 1 takes 2 events"),
    *("time passes, and something is late", *BEATS, "coordinator 1 takes 2 events"),
    *("time passes, and something is late", "the clock writes a tick"),
    *(*BEATS, "coordinator 1 takes 3 events"),
    *("time passes, and something is late", "the clock writes a tick"),
    *(*BEATS, "coordinator 1 takes 3 events"),  # A is fenced, and its lease runs on
    "Kafka stores again a join of A",
    "coordinator 1 takes 1 events",
)
