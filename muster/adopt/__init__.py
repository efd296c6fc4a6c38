"""Governs groups that Kafka coordinates, from their leader's seat. See docs/adopt.md."""
