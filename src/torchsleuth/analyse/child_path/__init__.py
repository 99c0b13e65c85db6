"""A folder for PYTHONPATH, not for importing."""
