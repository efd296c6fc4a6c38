"""Kafka Connect's assignors `eager`, `cooperative` and `static`, agreeing with Kafka's."""
