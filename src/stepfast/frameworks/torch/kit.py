"""All that a Run needs of torch, in one place: what `core.protocols.Kit` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepfast.core.protocols import BatchSource, Framework
from stepfast.core.words import Leaf
from stepfast.frameworks.torch import environment, rng, tensors
from stepfast.frameworks.torch.adapter import TorchFramework
from stepfast.frameworks.torch.batch_digest import batch_digest
from stepfast.frameworks.torch.generators import FoundGenerators
from stepfast.frameworks.torch.loader import LoaderSource, is_plain_loader


class TorchKit:
    """PyTorch."""

    capture_rng = staticmethod(rng.capture)
    restore_rng = staticmethod(rng.restore)
    digest_rng = staticmethod(rng.digest)
    batch_digest = staticmethod(batch_digest)
    scalar = staticmethod(environment.scalar)
    seed = staticmethod(environment.seed)
    determinism = staticmethod(environment.determinism)
    switch_deterministic_on = staticmethod(environment.switch_deterministic_on)

    def framework(
        self, *, model: object, optimizer: object, scheduler: object, scaler: object, extra: Mapping[str, object] | None
    ) -> Framework:
        return TorchFramework(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, extra=extra)

    def source(self, data: Any) -> BatchSource | None:
        return LoaderSource(data) if is_plain_loader(data) else None

    def generators(self, data: object) -> FoundGenerators:
        return FoundGenerators({"data": data})

    def buffer_for(self, leaf: Leaf) -> tuple[Any, memoryview]:
        tensor = tensors.empty_like_stored(leaf.dtype, leaf.shape, None)
        return tensor, tensors.byte_view(tensor)


KIT = TorchKit()
