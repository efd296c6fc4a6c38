"""The arithmetic of placement: shares, fewest moves, flows. Integer arrays that know no group."""
