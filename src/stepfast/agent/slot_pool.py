"""Which slots there are, and which hold a snapshot that is not on disk yet. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from stepfast.core.words import round_up
from stepfast.memory.room import available_bytes
from stepfast.memory.slot import Slot, no_room

# What the host keeps for everything else, so that a reservation never gets somebody killed for memory.
_LEFT_FREE = 0.05


class SlotPool:
    """A slot is complete (busy here) or free (the trainer may write it)."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._busy: set[int] = set()

    @property
    def is_idle(self) -> bool:
        return not self._busy

    def reserve(self, sizes: Sequence[int]) -> tuple[int, list[int]]:
        """New slots instead of the older ones, which must be idle.

        Returns:
            The size of each and their descriptors, which stay the pool's.

        Raises:
            StorageFailed: no room. There are no slots then.
        """
        assert self.is_idle
        self.close()
        size = round_up(max(*sizes, 1))
        room = available_bytes()
        if room is not None and size * len(sizes) > room * (1 - _LEFT_FREE):
            raise no_room(size * len(sizes), room)
        try:
            for _ in sizes:
                self._slots.append(Slot.allocate(size))
        except BaseException:
            self.close()
            raise
        return size, [slot.fd for slot in self._slots]

    def populate(self) -> None:
        for slot in self._slots:
            slot.populate()

    def take(self, number: int) -> memoryview:
        """The bytes of a slot that has just become complete. ValueError when the trainer cannot mean that."""
        if not 0 <= number < len(self._slots):
            raise ValueError(f"there is no slot {number}; there are {len(self._slots)}")
        if number in self._busy:
            raise ValueError(f"slot {number} still holds the snapshot before")
        self._busy.add(number)
        return self._slots[number].view()

    def free(self, number: int) -> None:
        self._busy.remove(number)

    def close(self) -> None:
        for slot in self._slots:
            slot.close()
        self._slots.clear()
