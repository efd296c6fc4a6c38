"""muster.broker."""
