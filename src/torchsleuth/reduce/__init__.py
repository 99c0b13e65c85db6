"""Case × oracle → smaller case: passes propose, the scheduler speculates."""
