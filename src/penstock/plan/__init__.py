"""Plans: how a pipeline will be run. `plan.py` is what a plan is, `rules.py` how it is made."""
