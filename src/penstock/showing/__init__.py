"""Samples, pipelines and diagnoses as people like to see them: tables, pictures, HTML for notebooks."""
