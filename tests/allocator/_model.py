"""The default-option allocator once more, as plainly as possible: the yardstick for fuzzing the fast one.

Every search is a scan over all blocks, and nothing is kept between calls but the lists of blocks themselves.
"""

from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass
class Piece:
    """A block: requested 0 means free."""

    address: int
    size: int
    requested: int = 0


@dataclass
class PlainModel:
    """Segments as lists of pieces, in the order the driver gave them."""

    capacity: int | None = None
    segments: list[list[Piece]] = field(default_factory=list)
    next_address: int = 1 << 35

    @property
    def reserved(self) -> int:
        return sum(piece.size for segment in self.segments for piece in segment)

    def allocate(self, num_bytes: int) -> int | None:
        """Address, or None where memory is out."""
        size = max(512, -(-num_bytes // 512) * 512)
        place = self._fit(size)
        if place is None and not self._grow(size):
            self.empty_cache()
            if not self._grow(size):
                return None
        segment, index = place or self._fit(size) or (self.segments[-1], 0)
        piece = segment[index]
        piece.requested = num_bytes
        rest = piece.size - size
        if rest >= 512 if size <= MIB else rest > MIB:
            piece.size = size
            segment.insert(index + 1, Piece(piece.address + size, rest))
        return piece.address

    def _fit(self, size: int) -> tuple[list[Piece], int] | None:
        found = [
            (piece.size, piece.address, number, index)
            for number, segment in enumerate(self.segments)
            if (sum(p.size for p in segment) == 2 * MIB) == (size <= MIB)
            for index, piece in enumerate(segment)
            if not piece.requested and piece.size >= size
        ]
        if not found:
            return None
        _, _, number, index = min(found)
        return self.segments[number], index

    def _grow(self, size: int) -> bool:
        total = 2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.capacity is not None and self.reserved + total > self.capacity:
            return False
        self.segments.append([Piece(self.next_address, total)])
        self.next_address += total
        return True

    def free(self, address: int) -> None:
        for segment in self.segments:
            for piece in segment:
                if piece.address == address:
                    piece.requested = 0
            for index in range(len(segment) - 1, 0, -1):
                if not segment[index].requested and not segment[index - 1].requested:
                    segment[index - 1].size += segment.pop(index).size

    def empty_cache(self) -> None:
        self.segments = [s for s in self.segments if len(s) > 1 or s[0].requested]

    def table(self) -> list[tuple[int, int, int]]:
        """(address, size, requested) of every block, by address."""
        return sorted((p.address, p.size, p.requested) for s in self.segments for p in s)
