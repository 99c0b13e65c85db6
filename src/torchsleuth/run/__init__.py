"""Running what a case describes, where a crash or a hang is an answer like any other."""
