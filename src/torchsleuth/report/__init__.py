"""Rendering what the layers below have found. Data comes in, something to look at goes out; nothing is measured."""
