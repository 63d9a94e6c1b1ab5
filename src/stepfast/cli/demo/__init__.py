"""`stepfast demo`: one training run that is killed and resumed, beside one that is not, and their comparison."""
