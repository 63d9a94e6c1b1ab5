"""Slot to disk: digests, hard links for what did not change, commit. Does not know processes or messages."""
