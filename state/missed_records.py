"""A group that has missed records: it was quarantined, or its liveness cannot be read.

- Members wrote heartbeats in that time, and so lengthened their leases. So each session begins with
  the next record that is read.
- Their reports were refused, and no digest shows that a copy has caught up. So each member counts
  as asked for a report: it gets its record again, with the question, after two heartbeats.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.state.group import Group
from muster.state.liveness import ASKED, MUTE
from muster.state.session_clock import longest_step_of


def after(group: Group) -> Group:
    """The group when it takes in records again."""
    sessions = group.sessions.copy()
    # The jump to the next record counts for one step at most; it must not shorten the sessions.
    begin_ms = sessions.session_ms + longest_step_of(group.settings, sessions)
    counts = (sessions.timeout_ms > 0) & ((sessions.flags & MUTE) == 0)
    sessions.last_ms[counts] = np.maximum(sessions.last_ms[counts], begin_ms)
    sessions.flags[counts] |= ASKED
    sessions.reset_earliest()
    return replace(group, sessions=sessions)
