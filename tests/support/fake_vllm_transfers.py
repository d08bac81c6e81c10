"""The transfers of weights of the stand-in for vLLM: their base class, and ipc as each release has it."""

from __future__ import annotations

from dataclasses import dataclass
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
    """What transfers of checkpoints have in common."""

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


class Factory:
    """The registry of a worker's transfers."""

    _registry: ClassVar[dict[str, Any]] = {}

    @classmethod
    def register_engine(cls, name: str, made: type) -> None:
        if name in cls._registry:
            raise ValueError(f"Weight transfer engine '{name}' is already registered.")
        cls._registry[name] = lambda: made
