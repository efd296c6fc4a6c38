"""A real single-node Kafka for tests, demos and laptops; the jars and the Java it runs on."""
