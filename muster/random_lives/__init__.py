"""Random lives of ordinary groups (`muster simulate --lives N`), which must keep every promise."""
