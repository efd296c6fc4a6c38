"""The clock of a member: leases are measured on it (`muster.boottime`)."""

from muster.boottime import boottime_ms

__all__ = ["boottime_ms"]
