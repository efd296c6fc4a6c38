"""What users write and commands print as JSON."""
