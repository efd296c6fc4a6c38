"""The member's side: `Worker` for Python programs, and the guard of ``muster worker --exec``."""
