"""`OneStepOffRollout`: plays the next step's episodes while the learners update on this one's."""

from __future__ import annotations

from concurrent.futures import wait

from turnwise.deadlines import in_daemon_thread
from turnwise.episode import Collection
from turnwise.scale.ray.collector import RemoteCollector
from turnwise.trainer.rollout import OnEpisode, Rollout
from turnwise.trainer.stopping import StopRequest


class OneStepOffRollout(Rollout):
    """Plays episodes with weights that are at most one update old.

    The first step of a run and the first after a checkpoint are played with the current weights,
    so that a run resumed from there does what an uninterrupted one does.
    """

    _next: BackgroundStep | None = None

    def play(self, step: int, stop: StopRequest, on_episode: OnEpisode | None = None) -> Collection:
        background, self._next = self._next, None
        if background is None or background.step != step:
            if background is not None:
                background.cancel()
            played = super().play(step, stop, on_episode)
        else:
            played = background.wait(stop)
            self.num_resampled = background.rollout.num_resampled
            self.zero_variance = background.rollout.zero_variance
            self._starts = background.rollout._starts
        # No step is played ahead across a checkpoint, so that resuming from it is exact.
        plan, next_step = self.plan, step + 1
        if plan is not None and next_step < plan.num_steps and not plan.is_saved_after(next_step):
            assert isinstance(self.collector, RemoteCollector)
            snapshot = self.snapshot(self.collector.with_current_weights())
            self._next = BackgroundStep(snapshot, next_step)
        return played

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None


class BackgroundStep:
    """A step whose episodes are played in a thread of their own."""

    def __init__(self, rollout: Rollout, step: int) -> None:
        self.rollout = rollout
        self.step = step
        self._stop = StopRequest(lambda text: None)
        self._playing = in_daemon_thread(
            lambda: rollout.play(step, self._stop), f"step {step} ahead"
        )

    def wait(self, stop: StopRequest) -> Collection:
        """Return its episodes; raises `Interrupted` if a stop is requested before they end."""
        with stop.on_request(self._stop.request):
            while not self._playing.done():
                wait([self._playing], timeout=0.2)  # so that signal handlers run in between
        return self._playing.result()

    def cancel(self) -> None:
        """End the episodes; their results are dropped."""
        self._stop.request()
        wait([self._playing], timeout=10.0)
