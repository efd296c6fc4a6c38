"""The Spark job around the pure core: one query, its clock, its claim. Only it imports pyspark."""
