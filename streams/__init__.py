"""The shell round the core: one Spark query, its clock, its claim. Only it imports pyspark."""
