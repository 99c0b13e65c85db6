"""A failure as data, and everything that is done with it short of running it."""
