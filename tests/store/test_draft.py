"""Drafts, encoded piece by piece, mean what the manifest means."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from stepfast.core.errors import StateNotStorable
from stepfast.core.words import StoredFile
from stepfast.store.draft import DraftEncoder
from stepfast.store.manifest import Manifest
from tests.store import build


def sample(step: int) -> Manifest:
    return build.manifest_of(step, build.files_of(500))


def test_a_draft_reads_as_the_manifest_it_was_made_of() -> None:
    encoder = DraftEncoder()
    for step in (1, 2):
        draft = replace(sample(step), finished='äöü "files":[]', determinism={"files": []}, unknown={"zz": [1]})
        assert Manifest.from_json(encoder.encode(draft)) == draft


def test_the_same_files_are_known_again_and_other_ones_are_not_mistaken_for_them() -> None:
    encoder = DraftEncoder()
    first = sample(1)
    encoder.encode(first)
    again = replace(first, step=2, files=(*first.files, StoredFile(name="metrics-00000009.bin", size=24)))
    assert Manifest.from_json(encoder.encode(again)) == again
    other = replace(sample(3), files=tuple(replace(stored, digest="") for stored in first.files))
    assert Manifest.from_json(encoder.encode(other)) == other


def test_a_manifest_without_files_goes_too() -> None:
    draft = replace(sample(1), files=(), aliases={})
    assert Manifest.from_json(DraftEncoder().encode(draft)) == draft


def test_what_no_reader_takes_is_refused_at_the_first_draft_and_later() -> None:
    encoder = DraftEncoder()
    first = sample(1)
    with pytest.raises(StateNotStorable, match="step 1"):
        encoder.encode(replace(first, aliases={"model.tied": "model.nowhere"}))
    encoder.encode(first)
    with pytest.raises(StateNotStorable, match="step 2"):
        encoder.encode(replace(first, step=2, hyperparameters=math.nan))
