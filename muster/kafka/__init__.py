"""Kafka as every process of muster uses it: connections, rights, reading and writing."""
