"""What muster keeps in a checkpoint beside Spark's files, and what a start reads from it."""
