"""File formats: what bytes mean. Sources and writers use these modules, which know nothing of pipelines."""
