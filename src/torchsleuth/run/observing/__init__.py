"""What happened in a run: the stage, the operator and the line that an exception or a dump of the stack came from."""
