"""Tensors as views of content-addressed storages, and recipes for those that never had values."""
