"""The group as a value, and `advance`, the only way it changes."""
