"""What coordinators have published about groups: read, folded and shown."""
