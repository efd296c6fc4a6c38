"""muster: Kafka-native task assignment as a service."""
