"""Tasks from Kafka: which topics and partitions there are, where their replicas are, their load."""
