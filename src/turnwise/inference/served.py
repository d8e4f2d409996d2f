"""Engines in other processes: their start, the calls to them, their turns and new weights."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import threading
from abc import abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack

import torch

from turnwise.deadlines import close_loop, new_loop, resolve_future, result_within
from turnwise.errors import ConfigError, DeadlineExceeded, EngineError, describe_error
from turnwise.inference.base import (
    BaseInferenceEngine,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Overflow,
    check_options,
)
from turnwise.inference.weights import (
    GroupAddress,
    NewWeights,
    Skeleton,
    Transfer,
    WeightSender,
    checked_weights,
    run_both,
)
from turnwise.inference.worker import CLOSED, EngineTurn
from turnwise.models import load_tokenizer

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

START_SECONDS = 900.0
"""Time limit for loading a model and capturing graphs, which takes minutes for a large one."""
_CLOSING_SECONDS = 60.0
"""Time limit for closing; afterwards the daemon thread is abandoned."""
_LOG = logging.getLogger("turnwise")


@contextlib.contextmanager
def own_processes() -> Iterator[None]:
    """End the workers that are started in the block if it exceeds its deadline."""
    before = set(multiprocessing.active_children())
    try:
        yield
    except DeadlineExceeded:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
        raise


def wait_for_start(future: Future[T], seconds: float | None, name: str) -> T:
    """Return the result of the start; raise `DeadlineExceeded` after `seconds` (None: never)."""
    if seconds is None:
        return future.result()
    fix = (
        "Its own log says how far it came. Give it more time: start_timeout=SECONDS (in a run "
        "inference.start_timeout), or None."
    )
    return result_within(future, seconds, f"starting {name}", fix)


class UpdateLock:
    """Many turns may sample at once; an update runs alone. For use in one event loop."""

    def __init__(self) -> None:
        self._num_sampling = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        # Turns only pass through it. An update holds it, so that no turn begins meanwhile.
        self._lock = asyncio.Lock()

    @property
    def is_updating(self) -> bool:
        """Whether an update waits for turns, or is running."""
        return self._lock.locked()

    @contextlib.asynccontextmanager
    async def sampling(self, deadline: float | None = None) -> AsyncIterator[None]:
        """Sample inside the block, after the update that is running."""
        async with asyncio.timeout_at(deadline), self._lock:
            self._num_sampling += 1
            self._is_idle.clear()
        try:
            yield
        finally:
            self._num_sampling -= 1
            if self._num_sampling == 0:
                self._is_idle.set()

    @contextlib.asynccontextmanager
    async def exclusive(
        self, cut: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[None]:
        """Hold new turns back, and wait until all running ones have finished, or `cut` them."""
        async with self._lock:
            if cut is not None:
                await cut()
            await self._is_idle.wait()
            yield


class WeightsRefused(EngineError):
    """New weights were not taken; the old ones are in place."""


class ServedOptions(TypedDict, total=False):
    """The options of every engine on a vLLM or SGLang in other processes."""

    tokenizer: Any
    overflow: Overflow
    model_path: str | None
    """The model's folder on this machine, if it differs from the server's: weights and token ids
    are checked against its configuration."""
    weights_dir: str | os.PathLike[str] | None
    """Where weights are written that go as files; both sides must be able to read it."""
    transfer: Transfer
    trust_remote_code: bool
    start_timeout: float | None


class ServedEngine(BaseInferenceEngine):
    """The base of engines on a vLLM or SGLang in other processes.

    All traffic runs in one event loop in its own thread. So requests may come from any event loop,
    and `update_weights` may block its caller while running turns finish.
    """

    name: str
    context_length = 0  # known once it is connected
    _client: JsonClient
    abort_grace = 10.0
    """Seconds in which the tokens of an aborted turn must arrive."""

    def __init__(self, **options: Unpack[ServedOptions]) -> None:
        check_options(self.name, options, ServedOptions.__annotations__)
        trust_remote_code = options.get("trust_remote_code", False)
        tokenizer = options.get("tokenizer")
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
        super().__init__(tokenizer, options.get("overflow", "truncate"))
        self._weights_dir = options.get("weights_dir")
        self._asked_transfer = options.get("transfer", "auto")
        self._transfer: Transfer | None = None
        self._sender: WeightSender | None = None
        self._failure: str | None = None
        self._update_lock = UpdateLock()
        self._is_closed = False
        self._closing = threading.Lock()
        self._calls: set[Future[Any]] = set()
        self._loop = new_loop()
        connected: Future[str] = Future()
        self._thread = threading.Thread(
            target=self._work, args=[connected], name=f"turnwise: {self.name.lower()}", daemon=True
        )
        try:
            with own_processes():
                self._thread.start()
                seconds = options.get("start_timeout", START_SECONDS)
                served_path = wait_for_start(connected, seconds, self.name)
        except BaseException:
            self._is_closed = True  # nothing to close
            # If `_connect` failed, the thread ends by itself; otherwise it may wait in the loop.
            if not (connected.done() and connected.exception()):
                with contextlib.suppress(RuntimeError):  # the loop is closed already
                    self._loop.call_soon_threadsafe(self._loop.stop)
            raise
        self._model_path = options.get("model_path") or served_path
        self._skeleton: Skeleton | None = None
        with contextlib.suppress(OSError, ValueError):  # not on a disk here: only the server checks
            self._skeleton = Skeleton(self._model_path, trust_remote_code, is_local=True)
            self._vocab_size = self._skeleton.vocabulary_size

    # Implemented by the engines; called in the engine's thread.

    @abstractmethod
    def _connect(self) -> str:
        """Connect; return where its model may be found. The loop is not running yet."""

    def _disconnect(self) -> None:
        """Disconnect. The loop is not running any more."""
        self._loop.run_until_complete(self._client.close())

    @abstractmethod
    async def _continue(self, turn: EngineTurn) -> FinishReason | None:
        """Sample the rest of a turn, until it ends or its deadline; None if an update cuts it."""

    @abstractmethod
    async def _score(self, ids: Sequence[int], start: int) -> list[float]:
        """Return the log-probs of `ids[start:]`."""

    @abstractmethod
    async def _end_turns(self) -> None:
        """End every request with the tokens sampled so far."""

    @abstractmethod
    async def _load(self, folder: str) -> None:
        """Load the weights of a folder and forget cached prefixes."""

    @abstractmethod
    async def _choose_transfer(self, sample: torch.Tensor) -> tuple[Transfer, str]:
        """Return how weights on the device of `sample` are sent, and why."""

    @abstractmethod
    async def _join(self, address: GroupAddress) -> None:
        """Let its workers join a group for broadcasts."""

    @abstractmethod
    async def _send(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Load tensors, named as in files, without the disk, and forget cached prefixes."""

    async def _take_memory(self, tag: Literal["weights", "kv_cache"]) -> None:
        """Take the memory again that `sleep` has freed; by default none is."""

    # The event loop and its thread.

    def _work(self, connected: Future[str]) -> None:
        asyncio.set_event_loop(self._loop)
        resolve_future(connected, self._connect)
        try:
            if connected.exception() is None:
                self._loop.run_forever()  # until it is stopped: closed, or the start was given up
            self._disconnect()
        except Exception as failure:  # no caller could handle it
            _LOG.warning("%s: ending failed: %s", self._thread.name, describe_error(failure))
        finally:
            close_loop(self._loop)

    def _in_loop(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the engine's loop; cancelling the future cancels it."""
        with self._closing:
            if self._is_closed:
                coroutine.close()
                raise RuntimeError(CLOSED)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            self._calls.add(future)
            future.add_done_callback(self._calls.discard)
            return future

    def close(self) -> None:
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        ending = asyncio.run_coroutine_threadsafe(self._end_turns(), self._loop)
        with contextlib.suppress(TimeoutError):
            ending.result(_CLOSING_SECONDS)
        wait(list(self._calls), self.abort_grace)  # SGLang has endless tasks in this loop
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_SECONDS)

    # Turns.

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        self._check_ids(request.prompt_ids)
        left = self.context_left(request)
        turn = EngineTurn(request, left, clock=self._loop.time, tokenizer=self.tokenizer)
        return await asyncio.wrap_future(self._in_loop(self._sample(turn)))

    async def _sample(self, turn: EngineTurn) -> GenerationResult:
        version = self.weight_version
        reason = turn.finish_reason()
        try:
            while reason is None:  # again after each update that has cut the turn
                async with self._update_lock.sampling(turn.deadline):
                    self._check_works()
                    turn.weights_changed(version, self.weight_version)
                    version = self.weight_version
                    # All of its tokens may have arrived when it was cut.
                    reason = turn.finish_reason() or await self._continue(turn)
                if reason is None and self._is_closed:
                    reason = FinishReason.ABORTED
        except TimeoutError:
            reason = FinishReason.DEADLINE
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
            reason = FinishReason.ABORTED
        return turn.result(reason, version)

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        self._check_scored(ids, start)

        async def score() -> list[float]:
            async with self._update_lock.sampling():
                self._check_works()
                return await self._score(ids, start) if start < len(ids) else []

        return await asyncio.wrap_future(self._in_loop(score()))

    def _check_works(self) -> None:
        if self._failure is not None:
            raise EngineError(self._failure)

    # Weights.

    def update_weights(self, weights: NewWeights) -> int:
        """Load new weights in place, from tensors by their Hugging Face names or from a folder.

        Running turns finish first, with the old weights. With `in_flight` they are cut, and go on
        with the new weights after their tokens so far. Tensors go by the fastest way that there
        is, and the log says which; those that are written go into `weights_dir`, which must be on
        a disk that the server can read. If they arrive in part only, turns fail until an update
        succeeds.
        """
        weights = checked_weights(weights, self._skeleton, self.name, is_server=True)
        if isinstance(weights, str):
            return self._update(partial(self._load, weights))
        assert self._skeleton is not None
        if self._transfer is None:
            transfer = self._asked_transfer
            why = "chosen by the option transfer"
            if transfer != "disk":
                sample = next(iter(weights.values()))
                transfer, why = self._in_loop(self._choose_transfer(sample)).result()
            self._transfer = transfer
            _LOG.info("weights reach %s by %s: %s", self.name, self._transfer, why)
        if self._transfer == "disk":
            with self._skeleton.written(weights, self._weights_dir) as written:
                return self._update(partial(self._load, str(written)))
        return self._update(partial(self._send, self._skeleton.as_files_have_them(weights)))

    def _update(self, load: Callable[[], Awaitable[None]]) -> int:
        async def update() -> int:
            cut = self._end_turns if self.in_flight is not None else None
            async with self._update_lock.exclusive(cut):
                before = self._failure
                self._failure = (
                    f"new weights did not reach {self.name} as a whole. Call update_weights again."
                )
                try:
                    await self._take_memory("weights")
                    await load()
                    await self._take_memory("kv_cache")
                except WeightsRefused:
                    self._failure = before
                    raise
                self._failure = None
                self.weight_version = self._next_version
                return self.weight_version

        return self._updated(self._in_loop(update()))

    async def _make_group(self, num_workers: int, backend: str) -> tuple[Transfer, str]:
        """Connect the learner with its workers for broadcasts; the disk is the other way."""
        try:
            sender = WeightSender(self._client.url, num_workers, backend)
            await run_both(self._join(sender.address), sender.connect)
        except (EngineError, RuntimeError, OSError) as error:
            return "disk", f"a {backend} group with its workers failed ({error})"
        self._sender = sender
        return "broadcast", f"{backend}, to {num_workers} workers"


class JsonClient:
    """A client of one server, for use in one event loop.

    It limits neither the time of a response nor the number of open requests: requests have their
    own deadlines, and the server queues them.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"url got {url!r}, expected one such as 'http://localhost:30000'")
        import httpx2  # late: settings are checked where it is not installed, beside VERL

        self.url = url.rstrip("/")
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            # Servers close idle connections after 5 s: none is used again shortly before that.
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=2.0),
            timeout=httpx2.Timeout(None, connect=10.0),
            verify=url.startswith("https"),  # otherwise no certificates are needed
            trust_env=False,  # no proxy between us and the server
        )

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the response: parsed if it is JSON, otherwise as text."""
        async with self._open(method, path, body) as response:
            await response.aread()
            is_json = response.headers.get("content-type", "").startswith("application/json")
            return response.json() if is_json else response.text

    async def post_lines(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[str]:
        """Yield the lines of the response as they arrive."""
        begun = b""
        async with self._open("POST", path, body) as response:
            # `aiter_lines` would also end a line at U+2028 and the like, which JSON may contain.
            async for chunk in response.aiter_bytes():
                *lines, begun = (begun + chunk).split(b"\n")
                for line in lines:
                    yield line.decode().removesuffix("\r")
            if begun:
                yield begun.decode()

    async def close(self) -> None:
        await self._client.aclose()

    @contextlib.asynccontextmanager
    async def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[httpx2.Response]:
        import httpx2

        where = self.url + path
        try:
            async with self._client.stream(method, path, json=body) as response:
                if response.is_error:
                    text = (await response.aread()).decode(errors="replace")
                    raise EngineError(f"{where} answered {response.status_code}: {text.strip()}")
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as e:
            raise EngineError(f"no server answers at {self.url}: is it up, and is that it?") from e
        except httpx2.TransportError as e:
            raise EngineError(f"{where} broke off ({e!r}): see the server's log") from e
