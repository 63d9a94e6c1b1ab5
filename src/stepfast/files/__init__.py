"""Files that stay what they are: durable writing, strict opening, strict JSON, locks.

The only place that calls fsync.
"""
