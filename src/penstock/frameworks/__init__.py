"""penstock with the training frameworks that people have: their datasets as sources, our loaders as theirs."""
