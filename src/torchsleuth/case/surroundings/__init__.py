"""What a run depends on besides its graph and inputs: modes, random state, configuration, environment."""
