"""Measurements: what a save, a resume and a run cost, as ratios to yardsticks measured in the same process.

`python -m bench.run` prints a table and keeps every raw value under out/. Absolute times belong to one machine at one
moment; only the ratios are meant to be compared.
"""
