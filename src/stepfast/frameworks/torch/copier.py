"""The blocking copy of live leaves into a slot, prepared once per layout.

Small leaves that lie side by side in the slot are gathered by one call; big ones are copied one by one. A prepared
copy keeps views of the live memory: it holds as long as the state's static part is the same object.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stepfast.core.protocols import LiveLeaf

GATHER_BYTES = 64 * 1024


class Copier:
    """Copies `sources` into `views`, which lie in one slot in the same order."""

    def __init__(self, sources: Sequence[LiveLeaf], views: Sequence[torch.Tensor]) -> None:
        self._single: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._gathered: list[tuple[list[torch.Tensor], torch.Tensor]] = []
        run: list[tuple[torch.Tensor, torch.Tensor]] = []
        for leaf, view in zip(sources, views, strict=True):
            source = leaf.tensor.detach()
            # Only what is contiguous has a flat view of the live memory; of anything else `reshape` makes a copy.
            flat = view.nbytes <= GATHER_BYTES and source.device.type == "cpu" and source.is_contiguous()
            flat = flat and not source.is_conj() and not source.is_neg()
            if not flat or not _continues(run, view):
                self._close(run)
                run = []
            if flat and view.nbytes:
                run.append((source.view(-1), view.view(-1)))
            elif view.nbytes:
                self._single.append((source, view))
        self._close(run)

    def run(self) -> None:
        with torch.no_grad():
            for parts, region in self._gathered:
                torch.cat(parts, out=region)
            for source, view in self._single:
                view.copy_(source)

    def _close(self, run: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        if len(run) < 3:
            self._single += run
            return
        first, length = run[0][1], sum(view.numel() for _, view in run)
        self._gathered.append(([source for source, _ in run], first.as_strided((length,), (1,))))


def _continues(run: Sequence[tuple[torch.Tensor, torch.Tensor]], view: torch.Tensor) -> bool:
    if not run:
        return True
    last = run[-1][1]
    return last.dtype == view.dtype and last.data_ptr() + last.nbytes == view.data_ptr()
