"""Recorded events, folded again and compared with what was published."""
