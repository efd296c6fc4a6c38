"""muster.worker."""
