"""Who is to blame for a failure."""
