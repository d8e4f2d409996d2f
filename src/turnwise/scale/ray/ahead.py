"""One step off: the next step's episodes are played while this one's are learned from."""

from __future__ import annotations

import threading
from typing import Any

from turnwise.episode import Collection
from turnwise.scale.ray.collector import RemoteCollector
from turnwise.trainer.rollout import OnEpisode, Rollout
from turnwise.trainer.stopping import StopRequest


class AheadRollout(Rollout):
    """Episodes come from weights that are one update old at most; never from older ones.

    The first step of a run and the first after a save are played with the weights of the moment:
    so a run that is resumed from there does what one that was never stopped does.
    """

    _ahead: Ahead | None = None

    def play(self, step: int, stop: StopRequest, on_episode: OnEpisode | None = None) -> Collection:
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.step != step:
            if ahead is not None:
                ahead.call_off()
            played = super().play(step, stop, on_episode)
        else:
            played = ahead.wait(stop)
            self.num_resampled = ahead.rollout.num_resampled
            self.zero_variance = ahead.rollout.zero_variance
            self._starts = ahead.rollout._starts
        # Nobody plays ahead across a checkpoint, so that resuming from it is exact.
        plan, next_step = self.plan, step + 1
        if plan is not None and next_step < plan.num_steps and not plan.is_saved_after(next_step):
            assert isinstance(self.collector, RemoteCollector)
            snapshot = self.snapshot(self.collector.with_weights_of_now())
            self._ahead = Ahead(snapshot, next_step)
        return played

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.call_off()
            self._ahead = None


class Ahead:
    """A step that is being played in a thread."""

    def __init__(self, rollout: Rollout, step: int) -> None:
        self.rollout = rollout
        self.step = step
        self._stop = StopRequest(lambda text: None)
        self._outcome: list[Collection] = []
        self._failure: list[BaseException] = []
        self._thread = threading.Thread(
            target=self._play, name=f"turnwise: step {step} ahead", daemon=True
        )
        self._thread.start()

    def _play(self) -> Any:
        try:
            self._outcome.append(self.rollout.play(self.step, self._stop))
        except BaseException as error:
            self._failure.append(error)

    def wait(self, stop: StopRequest) -> Collection:
        """Its episodes; `Interrupted` if a stop is asked for before they are over."""
        with stop.on_request(self._stop.request):
            while self._thread.is_alive():
                self._thread.join(0.2)  # so that signals are heard in between
        if self._failure:
            raise self._failure[0]
        return self._outcome[0]

    def call_off(self) -> None:
        """Nobody wants it any more."""
        self._stop.request()
        self._thread.join(timeout=10.0)
