"""A case as a script: one file of Python that needs torch and nothing else."""
