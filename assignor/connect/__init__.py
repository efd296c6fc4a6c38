"""Kafka Connect's assignors, to the last job what Kafka does: `eager`, `cooperative`, `static`."""
