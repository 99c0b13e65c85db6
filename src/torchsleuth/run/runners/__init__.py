"""Where a query is answered: in this process, in a fresh interpreter, in a warm worker, or by a script of a test."""
