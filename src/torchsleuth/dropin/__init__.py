"""torch's own repro interface, served by torchsleuth: the same names and calling conventions."""
