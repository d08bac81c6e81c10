"""The transfers of weights of the stand-in for vLLM: their base class, ipc and nccl as each release has them, and the sender of 0.28."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar


class WeightTransferEngine:
    """The base class of a worker's transfer."""

    init_info_cls: Any
    update_info_cls: Any

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any):
        self.config, self.device, self.model, self.model_config = config, device, model, vllm_config.model_config

    def parse_init_info(self, given: dict[str, Any]) -> Any:
        return self.init_info_cls(**given)

    def update_weights(self, given: dict[str, Any]) -> None:
        self.receive_weights(self.update_info_cls(**given))

    def receive_weights(self, info: Any) -> None:
        raise NotImplementedError


def initialize_layerwise_reload(model: Any) -> None:
    model.half_loaded = True


def finalize_layerwise_reload(model: Any, config: Any) -> None:
    model.half_loaded = False


class CheckpointTransfer(WeightTransferEngine):
    """What nccl and ipc have in common."""

    def init_transfer_engine(self, info: Any) -> None:
        self.info = info

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)


def ipc_transfer(number: tuple[int, int]) -> type:
    """The ipc transfer of a release: where `packed` belongs has changed."""

    @dataclass
    class Init:
        if number >= (0, 27):
            packed: bool = False

    @dataclass
    class Update:
        names: list[str]
        dtype_names: list[str]
        shapes: list[list[int]]
        ipc_handles: list[dict[str, tuple[Any, ...]]]
        if number < (0, 27):
            packed: bool = False

    class IPCWeightTransferEngine(CheckpointTransfer):
        init_info_cls, update_info_cls = Init, Update

        def receive_weights(self, info: Any) -> None:
            assert len(info.names) == len(info.dtype_names) == len(info.shapes) == len(info.ipc_handles)
            self.model.load_weights([(name, handle["gpu-0"][0]) for name, handle in zip(info.names, info.ipc_handles, strict=True)])

    return IPCWeightTransferEngine


def nccl_transfer(number: tuple[int, int], wire: list[Any]) -> dict[str, Any]:
    """The nccl module of a release. `wire` is what the sender has broadcast."""

    @dataclass
    class Init:
        master_address: str
        master_port: int
        rank_offset: int
        world_size: int
        if number >= (0, 28):
            packed: bool = False

    @dataclass
    class Update:
        names: list[str]
        dtype_names: list[str]
        shapes: list[list[int]]
        if number < (0, 28):
            packed: bool = False

    class NCCLWeightTransferEngine(CheckpointTransfer):
        init_info_cls, update_info_cls = Init, Update

        def receive_weights(self, info: Any) -> None:
            round_ = self.rounds = getattr(self, "rounds", 0) + 1
            while len(wire) < round_:  # as the real one, which waits for the broadcast
                time.sleep(0.001)
            pairs = wire[round_ - 1]
            assert [name for name, _ in pairs] == info.names
            self.model.load_weights(pairs)

        if number < (0, 28):

            @staticmethod
            def trainer_init(info: dict[str, Any]) -> Any:
                return ("group", info["world_size"])

            @staticmethod
            def trainer_send_weights(iterator: Any, args: Any) -> None:
                assert args.packed
                wire.append(list(iterator))

    made: dict[str, Any] = {"NCCLWeightTransferEngine": NCCLWeightTransferEngine}
    if number < (0, 28):
        made["NCCLTrainerSendWeightsArgs"] = lambda group, packed: SimpleNamespace(group=group, packed=packed)
    else:
        made["NCCLTrainerInitInfo"] = lambda **given: SimpleNamespace(**given)
    return made


class Trainer:
    """0.28 and later: the sender that makes the calls of a round itself, without a version."""

    def __init__(self, info: Any, client: Any, source: Any, wire: list[Any]):
        self.client, self.source, self.wire, self.rank = client, source, wire, info.rank
        if info.rank == 0:
            client.init_weight_transfer_engine(
                {"master_address": info.master_address, "master_port": info.master_port, "rank_offset": 1, "world_size": info.world_size,
                 "packed": info.packed}
            )  # fmt: skip

    def send_weights(self) -> None:
        meta = self.source.metadata()
        pairs = list(self.source)
        if self.rank != 0:
            return
        self.client.start_weight_update()
        self.wire.append(pairs)
        self.client.update_weights(
            {"names": [m.name for m in meta], "dtype_names": [str(m.dtype) for m in meta], "shapes": [list(m.shape) for m in meta]}
        )
        self.client.finish_weight_update()


class Factory:
    """The registry of a worker's transfers."""

    _registry: ClassVar[dict[str, Any]] = {}

    @classmethod
    def register_engine(cls, name: str, made: type) -> None:
        if name in cls._registry:
            raise ValueError(f"Weight transfer engine '{name}' is already registered.")
        cls._registry[name] = lambda: made
