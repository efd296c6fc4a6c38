"""Task placement: pure functions over integer arrays, without I/O, clock or randomness."""
