"""Settings of a loader that a resume compares with those of the start. Draws nothing and opens no sample."""

from __future__ import annotations

import bisect
from typing import Any

import torch
import xxhash
from torch.utils.data import ConcatDataset, DataLoader, Subset

SAMPLED_INDICES = 64


def loader_facts(loader: DataLoader[Any]) -> dict[str, object]:
    order = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    sampler = getattr(order, "sampler", order)
    facts: dict[str, object] = {
        **batching(loader),
        "dataset_length": _length(loader.dataset),
        "sampler": type(sampler).__qualname__,
        "workers": "none" if not loader.num_workers else "persistent" if loader.persistent_workers else "each epoch",
    }
    if order is not sampler and type(order).__qualname__ != "BatchSampler":
        facts["batch_sampler"] = type(order).__qualname__
    if (split := _split(loader.dataset)) is not None:
        facts["dataset_indices"] = split
    if (chosen := _chosen(sampler)) is not None:
        facts["sampler_indices"] = chosen
    return facts


def batching(loader: DataLoader[Any]) -> dict[str, object]:
    order = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    return {
        "batch_size": loader.batch_size if loader.batch_size is not None else getattr(order, "batch_size", None),
        "drop_last": bool(getattr(order, "drop_last", loader.drop_last)),
    }


def _split(dataset: Any) -> str | None:
    """Digest of places spread over a Subset, as places of the dataset below it: an unseeded split shows."""
    length = _length(dataset)
    if not length:
        return None
    places = [_resolved(dataset, place) for place in _spread(length)]
    if not any(is_split for is_split, _ in places):
        return None
    return _digest(length, [place for _, place in places])


def _resolved(dataset: Any, place: int) -> tuple[bool, tuple[int, ...]]:
    is_split = False
    path: list[int] = []
    while True:
        if isinstance(dataset, Subset):
            place, dataset, is_split = int(dataset.indices[place]), dataset.dataset, True
        elif isinstance(dataset, ConcatDataset):
            part = bisect.bisect_right(dataset.cumulative_sizes, place)
            place -= dataset.cumulative_sizes[part - 1] if part else 0
            path.append(part)
            dataset = dataset.datasets[part]
        else:
            return is_split, (*path, place)


def _chosen(sampler: Any) -> str | None:
    """Digest of the indices or weights that a sampler was given."""
    values: Any = sampler if isinstance(sampler, (list, tuple)) else None
    for name in ("indices", "weights"):
        given = getattr(sampler, name, None)
        if isinstance(given, (list, tuple, range)) or (isinstance(given, torch.Tensor) and given.dim() == 1):
            values = given
    if values is None or not len(values):
        return None
    return _digest(len(values), [_number(values[place]) for place in _spread(len(values))])


def _spread(length: int) -> list[int]:
    count = min(length, SAMPLED_INDICES)
    return [i * (length - 1) // max(count - 1, 1) for i in range(count)]


def _number(value: Any) -> object:
    return value.item() if isinstance(value, torch.Tensor) else value


def _digest(length: int, values: list[Any]) -> str:
    return xxhash.xxh3_128_hexdigest(f"{length} {values!r}".encode())


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None
