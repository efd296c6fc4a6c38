"""Placement as pure functions over integer arrays."""
