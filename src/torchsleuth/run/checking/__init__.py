"""A compiled function held against the graph that it was compiled from."""
