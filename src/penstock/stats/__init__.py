"""Counters of a running loader."""
