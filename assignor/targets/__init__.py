"""Where everything belongs in the end: actives, standbys, racks, weights; not the way there."""
