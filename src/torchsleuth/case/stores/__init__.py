"""Where cases are kept: a folder or anything that fsspec reaches, and the zip form."""
