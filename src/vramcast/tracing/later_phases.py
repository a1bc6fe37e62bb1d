"""What a script does once its steps repeat: its loops over data are cut short, so that what comes behind them runs too.

A loader that fed the steps gives no further batch, which ends the loop around it; loaders that are started afterwards
give a few each, as evaluations need no more, until a step of the next epoch ends the run. Loops over other things
cannot be cut: there a run ends with its steps.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from torch.utils.data.dataloader import _BaseDataLoaderIter

BATCHES: Final = 2
"""Of a loader that no backward follows: the second comes while results of the first are there."""
STEPS: Final = 3
"""After which a loop that goes on, though its loader has ended, is none over that loader: some look a batch ahead."""
NOT_CUT: Final = "what comes after these steps, as an evaluation, is not part of the answer; --steps runs further"
CUT: Final = "loops over data were cut short after these steps: what came behind them ran for {} batches each"
FAILED: Final = "what came after these steps ended with {}, which may be because its loops were cut short: {}"


class Loaders:
    """Every iterator over a loader, and which of them give no more."""

    def __init__(self) -> None:
        self.is_cut = False
        self.has_restarted = False  # a loader was started after the cut
        self._given: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
        """Iterator -> batches it gave, backwards before the first of them; within one side of the cut."""
        self._before: set[int] = set()  # ids of iterators that were under way at the cut

    def start(self) -> None:
        """Follow the batches of all loaders of this process."""
        give: Any = _BaseDataLoaderIter.__next__
        loaders = self

        def given(iterator: Any) -> Any:
            if loaders.has_ended(iterator):
                raise StopIteration
            batch = give(iterator)
            loaders.note(iterator)
            return batch

        _BaseDataLoaderIter.__next__ = given
        self.backwards = 0

    def note(self, iterator: Any) -> None:
        count, backwards = self._given.get(iterator, (0, self.backwards))
        self._given[iterator] = count + 1, backwards
        self.has_restarted = self.is_cut

    def has_ended(self, iterator: Any) -> bool:
        """Whether it gives no more, as if its data had come to an end."""
        if not self.is_cut:
            return False
        if id(iterator) in self._before:
            return True
        count, backwards = self._given.get(iterator, (0, self.backwards))
        return count >= BATCHES and backwards == self.backwards

    def cut(self) -> bool:
        """End the loops that are under way; whether there are any."""
        kept = list(self._given)
        self._before = set(map(id, kept))
        self._kept = kept  # so that no other iterator is taken for one of them
        self.is_cut = bool(kept)
        return self.is_cut
