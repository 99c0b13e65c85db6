"""FX graphs as data, and back: targets, values, what is known of nodes, symbolic sizes, code of the user's own."""
