"""The command `sleuth`: parses arguments, calls the layers below, prints what `report` renders."""
