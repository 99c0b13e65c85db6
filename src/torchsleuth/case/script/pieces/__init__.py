"""What every script brings along, as text: a script cannot import torchsleuth, so it holds the few lines it needs.

Each `Piece` is some functions that belong together. A section asks for the pieces that it calls, and only these are
written, below everything that is particular to the failure. They are plain torch and the standard library, short, and
written to be read by whoever gets the script: that is their only documentation.

    piece       what a piece is
    graphs      building a graph node by node
    tensors     memory, and tensors in it
    sizes       tensors without values, symbolic sizes
    running     running, comparing, and saying what was seen
"""
