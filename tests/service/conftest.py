"""Servers in processes of their own, and a proxy for faults."""
