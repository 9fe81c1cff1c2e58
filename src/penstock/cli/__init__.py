"""The command line. ``main`` chooses a command; every command is a file of its own."""
