"""Bytes to `Case` and back: the sealed file, and everything about it that types alone cannot say."""
