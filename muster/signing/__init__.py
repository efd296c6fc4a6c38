"""The keys that events are signed with: their file, and how they rotate."""
