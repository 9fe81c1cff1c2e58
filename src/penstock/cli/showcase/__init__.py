"""The parts of ``penstock demo``: its photos, its two runs, and how they are shown."""
