"""`make mutants`: our own source broken on purpose, one slip at a time; the suite must notice each."""
