"""The `muster` command."""
