"""A case for people: its graph as code, its values in words, and Python that spells a value."""
