"""Tests of groups that Kafka coordinates and muster governs; they share one coordinator."""
