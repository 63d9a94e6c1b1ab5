"""All that lies below a run directory: checkpoints, refs, progress, ledger.

The format is docs/internals/format.md.
"""
