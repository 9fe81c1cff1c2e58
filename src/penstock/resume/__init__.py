"""Where a stream stands, as plain data: what is still owed, as recipes."""
