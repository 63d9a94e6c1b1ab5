"""Drafts of manifests, one snapshot after the other: what stays from one to the next is encoded once.

A draft is read as strictly as a manifest. Not here: what a draft holds (`capture`), and the digests it lacks
(`persist`).
"""

from __future__ import annotations

from dataclasses import fields

from stepfast.core.words import StoredFile
from stepfast.store import manifest_json
from stepfast.store.manifest import Manifest


class DraftEncoder:
    """Encodes the drafts of one run. Thousands of leaves take tens of milliseconds, and the loop waits for it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StoredFile, bytes]] = {}

    def encode(self, draft: Manifest) -> bytes:
        """The same meaning as `draft.to_json()`, in the compact form.

        Files with leaves are known again by identity: a layout keeps them while it stands.

        Raises:
            StateNotStorable: a field holds what no reader would take.
        """
        with_leaves = [stored for stored in draft.files if stored.leaves]
        if any(id(stored) not in self._known for stored in with_leaves):
            draft.to_json()  # in full, once for a layout: it refuses what no reader would take
            # The files are kept with their bytes, so that no other one can get their identity.
            self._known = {id(stored): (stored, manifest_json.encode_file(stored)) for stored in with_leaves}
        files = [
            self._known[id(stored)][1] if stored.leaves else manifest_json.encode_file(stored) for stored in draft.files
        ]
        return manifest_json.splice({known.name: getattr(draft, known.name) for known in fields(draft)}, files)
