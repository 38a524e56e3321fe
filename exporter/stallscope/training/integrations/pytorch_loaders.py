"""Attribute the time of a PyTorch loop's data loaders to `data_wait` or to an evaluation, and count their samples."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from stallscope.training.integrations.pytorch_batches import Pass
from stallscope.training.integrations.pytorch_evaluation import BETWEEN, EVALUATING, TRAINING
from stallscope.training.integrations.pytorch_state import LoopPart, LoopState, guarded
from stallscope.training.shim import rebooking
from stallscope.training.shim.checked_numbers import number
from stallscope.training.shim.tolerance import tolerate

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_batches import Prefetched
    from stallscope.training.integrations.pytorch_modules import Modules
    from stallscope.training.shim.rebooking import Snapshot

_AT_ONCE = 0.05
"""Seconds after which the making of a loader's iterator no longer belongs to the wait for its first batch."""
_MOST_AHEAD = 2
"""Batches that a loader may be ahead of the loop; more were passed over."""


class Loaders(LoopPart):
    """The loaders of a loop and the passes over them. It holds loaders and iterators weakly.

    Loaders that are iterated in other threads only add to the value `prefetch_seconds`, unless that thread trains a
    model of its own.
    """

    def __init__(
        self,
        state: LoopState,
        modules: Modules,
        loaders: Iterable[Any],
        prefetched: Prefetched,
        *,
        counts_samples: bool,
    ) -> None:
        """Begin without passes.

        Args:
            state: the loop's state.
            modules: the modules that the loop calls.
            loaders: that are trained from, any other being for evaluation; none: as predicted and then observed.
            prefetched: samples and seconds of other threads.
            counts_samples: whether to count samples by the size of batches.
        """
        super().__init__(state)
        self._modules = modules
        self._wait = state.wait
        self._now = state.timeline.now
        self._training = weakref.WeakSet(loaders)
        self._predicts = not self._training
        self._passes: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()
        """Passes by iterator."""
        self._roles: weakref.WeakKeyDictionary[Any, dict[bool, bool]] = weakref.WeakKeyDictionary()
        """By loader and by whether gradients were enabled: True if the newest pass trained."""
        self.unproven: list[Pass] = []
        """Passes with batches since the last backward pass."""
        self.current: Pass | None = None
        """The pass of the newest batch; None if that was not for training."""
        self._prefetched = prefetched
        self._prefetching = 0.0
        """Seconds that other threads have waited for loaders."""
        self._counts_samples = counts_samples
        self._samples = 0
        """Samples since the last report."""

    # Events

    def begin_pass(self, loader: Any, begin: Callable[[Any], Any]) -> Any:
        """Let a loader make its iterator, for which its workers start."""
        made = self._new_pass(loader)
        if made is None:
            return begin(loader)
        if made.trains is False:
            iterator = begin(loader)
        elif made.is_prefetched:
            iterator = self._prefetch(begin, loader)
        elif self._timeline.looping:
            iterator = self._await(begin, loader)
        else:
            iterator = begin(loader)
        self._keep_pass(iterator, made)
        return iterator

    def next_batch(self, iterator: Any, following: Callable[[Any], Any]) -> Any:
        """Let a loader's iterator return its next batch."""
        found = self.current
        if found is None or found.iterator() is not iterator or not self.goes_on(found):
            found = self._begin_fetch(iterator)
            if found is None:
                return following(iterator)
            if found.is_prefetched:
                batch = self._prefetch(following, iterator)
                self._take(found, found.dimension(batch))
                return batch
            if found.is_evaluated:
                return self._evaluate(found, iterator, following)
            self.current = found
        self.begin_fetch(found)
        self._calls.ignored = True
        try:
            batch = following(iterator)
        except BaseException as error:
            self._calls.ignored = False
            self.fail_fetch(found, iterator, error)
            raise
        self._calls.ignored = False
        self.end_fetch(found, found.dimension(batch))
        return batch

    def begin_fetch(self, found: Pass) -> None:
        """Begin the wait for a batch of a pass that trains."""
        self._cycle.is_waiting = True
        self._state.begin_wait()

    def end_fetch(self, found: Pass, dimension: int) -> None:
        """End the wait with a batch of this leading dimension."""
        self._end_wait()
        self._timeline.held = True
        self._cycle.fetched()
        self._take(found, dimension)
        if not self._input.has_modules:
            self._state.begin_input()

    def fail_fetch(self, found: Pass, iterator: Any, error: BaseException) -> None:
        """End the wait without a batch."""
        self._end_pass(found, iterator, error)
        self._end_wait()

    def goes_on(self, found: Pass) -> bool:
        """Return whether a pass that trains goes on as it did with its last batch, which needs no decision."""
        return bool(
            found.trains
            and self._evaluations.state is TRAINING
            and not self._wait.opened
            and not self._input.is_open
            and get_ident() == self._thread.ident
            and not self._run.silent
            and not self._run.claimed_by
            and torch.is_grad_enabled()
            and not found.is_prefetched
        )

    def prove(self) -> None:
        """Note that gradients are computed from the batches so far: they are trained from."""
        for found in self.unproven:
            if not found.is_proven:
                found.is_proven = True
                self._decide(found, trains=True)
                if not self._run.claimed_by:
                    self._run.begin_pass()
                    self._describe(found)
            if found.in_hand:
                self._samples += found.in_hand.popleft()
        self.unproven = [found for found in self.unproven if found.in_hand]

    # Reports

    def decide_before_report(self) -> None:
        """Decide what the passes are for whose batches were used: what a report contains cannot be moved any more."""
        for found in self.unproven:
            if found.trains is None and found.before is not None:
                if found.predicted or not self._is_used(found) or self._timeline.current.name not in BETWEEN:
                    found.before = rebooking.snapshot(self._timeline)
                else:
                    self._evaluate_used(found)

    def report(self) -> None:
        """Report the samples since the last report, and the seconds of other threads."""
        prefetched, seconds = self._prefetched.take()
        self._prefetching += seconds
        samples, self._samples = self._samples + prefetched, 0
        if samples and self._counts_samples and self._run.batch_size is None:
            self._run.add("samples", samples)
        if self._prefetching:
            self._run.value("prefetch_seconds", self._prefetching)

    # Passes

    @guarded
    def _new_pass(self, loader: Any) -> Pass | None:
        gradients = torch.is_grad_enabled()
        if self._thread.is_elsewhere():
            if self._thread.is_excluded():
                return None
            return Pass(loader, True, True, gradients, is_prefetched=True)
        if self._is_timed_by_others():
            return None
        trains = None if self._predicts else loader in self._training
        predicted = self._predict(loader, gradients) if trains is None else trains
        if trains is None and not gradients and not predicted:
            trains = False
        made = Pass(loader, trains, predicted, gradients)
        if trains is False:
            if self._evaluations.state is not EVALUATING:
                self._state.begin_evaluation()
        else:
            self._state.train()
            self._drop_left(loader)
            made.before = rebooking.snapshot(self._timeline)
        return made

    @guarded
    def _keep_pass(self, iterator: Any, made: Pass) -> None:
        made.ended = self._timeline.now()
        made.iterator = weakref.ref(iterator)
        self._passes[iterator] = made
        if not made.is_prefetched:
            self.current = None
        if made.trains is False and self._evaluations.lacks_iterator:
            self._evaluations.follow(iterator, self._dropped)

    @guarded
    def _begin_fetch(self, iterator: Any) -> Pass | None:
        """Return the pass that a batch is fetched for, after it was decided what for; None where it is not observed."""
        found = self._passes.get(iterator)
        if self._thread.is_elsewhere():
            if self._thread.is_excluded():
                return None
            if found is None:
                found = Pass(None, True, True, True, iterator=iterator, is_prefetched=True)
                self._keep_pass(iterator, found)
            return found if found.is_prefetched else None
        if self._is_timed_by_others():
            return None
        gradients = torch.is_grad_enabled()
        if found is None:
            found = Pass(None, None, self._predict(None, gradients), gradients, iterator=iterator)
            self._keep_pass(iterator, found)
        found.is_prefetched = False
        if found.trains is None and self._is_used(found):
            self._evaluate_used(found)
        if found.trains is None and found.gradients and not gradients:
            found.trains = False
        found.is_evaluated = found.trains is False or (found.gradients and not gradients)
        if found.is_evaluated:
            if self._evaluations.state is not EVALUATING:
                self._state.begin_evaluation()
            if self._evaluations.lacks_iterator:
                self._evaluations.follow(iterator, self._dropped)
            return found
        self._state.train()
        if found.trains is None and not found.fetched:
            if found.before is None or self._timeline.now() - found.ended > _AT_ONCE:
                found.before = rebooking.snapshot(self._timeline)
            elif not self._timeline.looping:
                self._begin_loop(found.before)
        return found

    def _evaluate(self, found: Pass, iterator: Any, following: Callable[[Any], Any]) -> Any:
        """Let the iterator of an evaluation return its next batch."""
        self.current = None
        self._cycle.is_waiting = False
        try:
            return following(iterator)
        except BaseException as error:
            self._end_pass(found, iterator, error)
            raise

    @guarded
    def _end_pass(self, found: Pass, iterator: Any, error: BaseException) -> None:
        """A pass has no more batches, or failed."""
        if found.is_evaluated:
            if self._evaluations.is_from(iterator):
                self._evaluations.leave()
        elif not isinstance(error, StopIteration):
            return
        elif found.trains:
            self._samples += sum(found.in_hand)
            found.in_hand.clear()
        elif self._is_used(found):
            self._evaluate_used(found)
            self._evaluations.end()
            self._cycle.is_waiting = False

    @guarded
    def _dropped(self, reference: weakref.ref[Any]) -> None:
        """End the evaluation whose loader was left early."""
        if self._evaluations.follows(reference) and not self._thread.is_elsewhere():
            self._evaluations.leave()

    def _drop_left(self, loader: Any) -> None:
        """Count no samples of a batch that a loop over this loader fetched before it was left, and did not use."""
        for found in self.unproven:
            if found.loader() is loader and found.iterator() is None:
                found.in_hand.clear()

    def _is_used(self, found: Pass) -> bool:
        """Return whether a module was called with the newest batch of a pass."""
        return found.fetched > 0 and found.forwards != self._cycle.forwards

    def _evaluate_used(self, found: Pass) -> None:
        """Decide that a pass is an evaluation, whose batches were used without a backward pass."""
        before = found.before
        self._decide(found, trains=False)
        found.in_hand.clear()
        self._cycle.drop_forward()
        self._cycle.unfetched(found.fetched)
        self.unproven = [other for other in self.unproven if other is not found]
        if before is not None:
            self._state.begin_evaluation(before)

    def _decide(self, found: Pass, *, trains: bool) -> None:
        """Decide what a pass is for, and predict the same of the next one over its loader."""
        found.trains, found.before = trains, None
        loader = found.loader()
        if loader is not None:
            self._roles.setdefault(loader, {})[found.gradients] = trains

    def _predict(self, loader: Any, gradients: bool) -> bool:
        """Predict whether a pass trains: as the one before did in this mode, else by the modes of what is trained."""
        known = None if loader is None else self._roles.get(loader, {}).get(gradients)
        return gradients and self._modules.predict_training() if known is None else known

    def _take(self, found: Pass, dimension: int) -> None:
        """Count a batch. Its samples count once it has been used."""
        try:
            samples = found.samples(dimension) if self._counts_samples and self._run.batch_size is None else 0
            found.fetched += 1
            if found.is_prefetched:
                self._prefetched.add(samples, 0.0)
                return
            found.in_hand.append(samples)
            if len(found.in_hand) > _MOST_AHEAD and found.trains:
                self._samples += found.in_hand.popleft()  # of a batch that was passed over
            found.forwards = self._cycle.forwards
            if found not in self.unproven:
                self.unproven.append(found)
        except Exception as error:
            tolerate(error, "counting samples")

    def _describe(self, found: Pass) -> None:
        if number(found.workers) is not None:
            self._run.gauge("dataloader_workers", found.workers)
        if found.nominal and self._run.batch_size is None:
            self._run.gauge("batch_size", found.nominal)

    # Waits

    def _await(self, function: Callable[[Any], Any], argument: Any) -> Any:
        self._state.begin_wait()
        self._calls.ignored = True
        try:
            return function(argument)
        finally:
            self._calls.ignored = False
            self._end_wait()

    def _end_wait(self) -> None:
        if get_ident() == self._thread.ident:  # else another thread has shown that the loop is its own
            self._wait.__exit__()

    def _prefetch(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Let a thread that is not the loop's wait for a loader."""
        began = self._now()
        try:
            return function(argument)
        finally:
            self._prefetched.add(0, self._now() - began)

    def _begin_loop(self, before: Snapshot) -> None:
        """Begin the loop when the first pass began, for the start of a loader's workers is a wait for data."""
        self._wait.__enter__()
        self._wait.__exit__()
        rebooking.rebook(self._timeline, before, self._wait, ("initialization",))
        self._wait.occurrences = 0

    def _is_timed_by_others(self) -> bool:
        """Return whether a tracked loader times its own wait, or an integration that claimed the run does."""
        return self._wait.opened or self._run.claimed_by != ""
