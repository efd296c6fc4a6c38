"""The console: groups as a page that is left open, and as one file."""
