"""The arithmetic of placement: shares, fewest moves, flows. It knows integer arrays, no groups."""
