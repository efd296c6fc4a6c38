"""Targets: where actives and standbys belong in the end."""
