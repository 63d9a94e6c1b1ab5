"""`model.safetensors.index.json`: the file of each key, where there are several model files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepfast.core.words import StoredFile
from stepfast.files import strict_json

_PART = re.compile(r"(model[A-Za-z0-9._]*)-[0-9]{5}-of-[0-9]{5}\.safetensors", re.ASCII)


def build_indexes(files: Sequence[StoredFile]) -> dict[str, bytes]:
    """Name and content of each index that the files need."""
    groups: dict[str, list[StoredFile]] = {}
    for stored in files:
        if match := _PART.fullmatch(stored.name):
            groups.setdefault(match[1], []).append(stored)
    return {
        f"{stem}.safetensors.index.json": strict_json.dumps(
            {
                "metadata": {"total_size": sum(leaf.size for part in parts for leaf in part.leaves)},
                "weight_map": {leaf.key: part.name for part in parts for leaf in part.leaves},
            }
        )
        for stem, parts in groups.items()
    }
