"""Looks at groups that Kafka coordinates, and at what muster would do with them."""
