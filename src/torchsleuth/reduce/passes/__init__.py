"""What can be made smaller in a case, each a small function. `tiers` has the list."""
