"""The learner's side of an nccl transfer: weights go from the GPU of one learner rank straight to the GPUs of the engines.

    client = Client([engine, …], workers=tensor_parallel)         # engines in this process; for actors, objects that call them
    sender = make_sender(client, weights, address, port, rank)    # every learner rank; only rank 0 talks to the engines
    sender.send(version)

`weights()` iterates again over whole tensors under their checkpoint names, in the order of the layers. NCCL has no time limit, so this side
of a transfer runs in a thread, and gets `client.seconds` for it. After any failure, which includes a deadline that has passed, the engines
of this client and the sender have to be made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from turnwise.engines.vllm.compat import Release, find, load
from turnwise.util.deadlines import begin, within
from turnwise.util.errors import TurnwiseError

T = TypeVar("T")
AGAIN = "the engines and their sender have to be made again"
SECONDS = 1800.0  # for each part of a transfer
Weights = Callable[[], Iterable[tuple[str, Tensor]]]


class Takes(Protocol):
    """The part of an engine that a sender uses: vLLM's four calls."""

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> Any: ...

    def start_weight_update(self) -> Any: ...

    def update_weights(self, update_info: Mapping[str, Any]) -> Any: ...

    def finish_weight_update(self, weight_version: str | None = None) -> Any: ...


class Client:
    """Several engines as one. vLLM counts the ranks of an engine's workers from an offset that it sends to all engines alike: each gets its
    own here, or two engines would claim the same ranks and wait forever. The calls of one step run at the same time in all engines, and all
    of them return within `seconds`, or there is an error."""

    def __init__(self, engines: Sequence[Takes], workers: int = 1, seconds: float = SECONDS):
        if not engines:
            raise TurnwiseError("a sender of weights needs at least one engine")
        if not seconds > 0:
            raise TurnwiseError(f"a sender of weights needs a deadline above 0 seconds, not {seconds:g}")
        self.engines, self.workers, self.seconds = list(engines), workers, seconds
        self.version: str | None = None

    @property
    def world_size(self) -> int:
        """The sender and all workers."""
        return 1 + len(self.engines) * self.workers

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        infos = [{**init_info, "rank_offset": 1 + place * self.workers} for place in range(len(self.engines))]
        self._all("init_weight_transfer_engine", lambda engine, place: engine.init_weight_transfer_engine(infos[place]))

    def start_weight_update(self) -> None:
        self._all("start_weight_update", lambda engine, place: engine.start_weight_update())

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        self._all("update_weights", lambda engine, place: engine.update_weights(dict(update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """vLLM's sender gives no version, so it is added here."""
        label = weight_version if weight_version is not None else self.version
        self._all("finish_weight_update", lambda engine, place: engine.finish_weight_update(label))

    def _all(self, what: str, call: Callable[[Takes, int], Any]) -> None:
        """Call all engines. The first error is raised at once: the other engines may wait for the one that failed."""
        end = time.monotonic() + self.seconds
        calls = [begin(partial(call, engine, place), what) for place, engine in enumerate(self.engines)]
        for place, done in enumerate(calls):
            try:
                done.result(timeout=max(end - time.monotonic(), 0.0))
            except TimeoutError:
                _own(done)
                raise TurnwiseError(f"engine {place} did not answer {what} within {self.seconds:g} seconds: {AGAIN}") from None


def _own(done: Future[Any]) -> None:
    """Raise the error of a call that has ended: it may be a TimeoutError too."""
    if done.done():
        done.result(timeout=0)


def _limited(client: Client, what: str, work: Callable[[], T]) -> T:
    """This side of a transfer in a thread, on the GPU that is current here."""
    gpu = torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None

    def there() -> T:
        if gpu is not None:
            torch.cuda.set_device(gpu)
        return work()

    try:
        return within(client.seconds, what, there)
    except TimeoutError as error:
        raise TurnwiseError(f"{error}: {AGAIN}") from None


class Sender(Protocol):
    """Sends the weights once per call."""

    def send(self, version: int) -> None: ...


def make_sender(client: Client, weights: Weights, address: str, port: int, rank: int = 0, release: Release | None = None) -> Sender:
    """The sender for the installed vLLM. It meets the engines' workers here, so all of them have to be up."""
    found = release or find()
    kind = StatefulSender if found.stateful else StaticSender
    return _limited(client, "meeting the engines' workers", lambda: kind(client, weights, address, port, rank))


class StaticSender:
    """Up to 0.27: two static functions, and the calls of a round are ours."""

    def __init__(self, client: Client, weights: Weights, address: str, port: int, rank: int):
        self._client, self._weights, self._rank = client, weights, rank
        self._kinds: list[tuple[str, str, list[int]]] | None = None
        self._engine, self._args = load(
            "vllm.distributed.weight_transfer.nccl_engine", "NCCLWeightTransferEngine", "NCCLTrainerSendWeightsArgs"
        )
        info = {"master_address": address, "master_port": port, "world_size": client.world_size}
        if rank == 0:
            with _meanwhile(client, client.init_weight_transfer_engine, {**info, "rank_offset": 1}):
                self._group = self._engine.trainer_init(info)

    def send(self, version: int) -> None:
        _limited(self._client, f"sending version {version}", lambda: self._send(version))

    def _send(self, version: int) -> None:
        if self._kinds is None:  # every rank makes this pass, because it gathers shards
            self._kinds = [(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for name, tensor in self._weights()]
        if self._rank != 0:
            for _ in self._weights():
                pass
            return
        names, dtypes, shapes = (list(column) for column in zip(*self._kinds, strict=True))
        info = {"names": names, "dtype_names": dtypes, "shapes": shapes, "packed": True}
        self._client.start_weight_update()
        with _meanwhile(self._client, self._client.update_weights, info):
            self._engine.trainer_send_weights(iter(self._weights()), self._args(group=self._group, packed=True))
        self._client.finish_weight_update(str(version))


class StatefulSender:
    """From 0.28 on: vLLM's object makes the calls of a round through our client."""

    def __init__(self, client: Client, weights: Weights, address: str, port: int, rank: int):
        (factory,) = load("vllm.distributed.weight_transfer.factory", "WeightTransferTrainerFactory")
        (info,) = load("vllm.distributed.weight_transfer.nccl_engine", "NCCLTrainerInitInfo")
        given = info(master_address=address, master_port=port, world_size=client.world_size, rank=rank, packed=True)
        self._client = client
        self._trainer = factory.trainer_init(given, client=client, source=_source(weights))

    def send(self, version: int) -> None:
        self._client.version = str(version)
        _limited(self._client, f"sending version {version}", self._trainer.send_weights)


def _source(weights: Weights) -> Any:
    """The weights as vLLM's sender reads them. Names and shapes, which it requests first, take one additional pass."""
    base, meta = load("vllm.distributed.weight_transfer.base", "WeightSource", "ParamMeta")

    class Source(base):  # type: ignore[misc,valid-type]
        """All weights, again in every round."""

        _metadata: list[Any] | None = None

        def metadata(self) -> list[Any]:
            if self._metadata is None:
                self._metadata = [meta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights()]
            return self._metadata

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return iter(weights())

    return Source()


@contextmanager
def _meanwhile(client: Client, call: Callable[..., Any], *values: Any) -> Iterator[None]:
    """Run a call of the engines while this process does its part. If this part fails, the call is not waited for: it would never return."""
    done = begin(partial(call, *values), "engines")
    _own(done)
    yield
    try:
        done.result(timeout=client.seconds)
    except TimeoutError:
        _own(done)
        raise TurnwiseError(f"the engines did not answer within {client.seconds:g} seconds: {AGAIN}") from None
