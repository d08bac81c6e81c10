"""Kernels in CUDA for Hopper GPUs: how a source next to its module is compiled, loaded and launched, and how TMA finds boxes.

The compiler is NVRTC, which torch brings. It takes a second or less for each kind of kernel, at its first use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

from turnwise.kernels.gpu import sm_count

ROOM = 227 << 10  # bytes of an SM's shared memory that a block may take
BOX = 128  # bytes of a row of a box


@cache
def bindings() -> tuple[Any, Any]:
    """CUDA's driver and compiler."""
    from cuda.bindings import driver, nvrtc  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return driver, nvrtc


def good(answer: tuple[Any, ...]) -> Any:
    """What a call has returned, if it says that all is well."""
    code, *rest = answer
    if int(code) != 0:
        raise RuntimeError(f"CUDA says {code.name}")
    return rest[0] if len(rest) == 1 else rest


def source_of(name: str, **values: int | str) -> str:
    """A kernel's source with what the host gives it, and what all kernels have in common."""
    texts = [Path(__file__).with_name(f"{one}.cu").read_text(encoding="utf-8") for one in ("common", name)]
    return "".join(f"#define {name} {value}\n" for name, value in values.items()) + "".join(texts)


@cache
def compiled(source: str) -> bytes:
    """A source as an image for the GPU."""
    _, nvrtc = bindings()
    program = good(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    options = [b"--gpu-architecture=sm_90a", b"--std=c++17", b"-default-device"]
    if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) != 0:
        log = b" " * good(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError("a kernel for Hopper GPUs does not compile:\n" + log.decode(errors="replace").strip("\0 \n"))
    image: bytes = b" " * good(nvrtc.nvrtcGetCUBINSize(program))
    good(nvrtc.nvrtcGetCUBIN(program, image))
    nvrtc.nvrtcDestroyProgram(program)
    return image


@cache
def loaded(source: str, name: str, memory: int, device: torch.device) -> Any:
    """The kernel of this name in a source, whose blocks take so many bytes of an SM's shared memory."""
    driver, _ = bindings()
    with torch.cuda.device(device):
        torch.cuda.current_stream()  # the device has a context
        kernel = good(driver.cuModuleGetFunction(good(driver.cuModuleLoadData(compiled(source))), name.encode()))
        good(driver.cuFuncSetAttribute(kernel, driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, memory))
    return kernel


def launch(
    kernel: Any, blocks: int, threads: int, memory: int, device: torch.device, given: Sequence[Any], kinds: Sequence[Any], overlap: bool
) -> None:
    """Run a kernel on so many blocks; `overlap`: it may begin before the last one has ended."""
    driver, _ = bindings()
    config = _config(blocks, threads, memory)
    config.hStream = torch.cuda.current_stream(device).cuda_stream
    if overlap:
        config.attrs, config.numAttrs = [_may_begin_early()], 1
    with torch.cuda.device(device):
        good(driver.cuLaunchKernelEx(config, kernel, (tuple(given), tuple(kinds)), 0))


@lru_cache(maxsize=4096)
def box_map(place: int, rows: int, width: int, box: int, bytes_each: int = 2) -> Any:
    """How TMA finds boxes of so many rows, 128 bytes wide, in a matrix of bfloat16 or float32; outside of it are zeros."""
    d, _ = bindings()
    number, kinds = d.cuuint32_t, d.CUtensorMapDataType
    kind = kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 if bytes_each == 2 else kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32
    return good(
        d.cuTensorMapEncodeTiled(
            kind, 2, place, [d.cuuint64_t(width), d.cuuint64_t(rows)],
            [d.cuuint64_t(bytes_each * width)], [number(BOX // bytes_each), number(box)], [number(1), number(1)],
            d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, d.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B, d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )  # fmt: skip


@cache
def clusters(kernel: Any, blocks: int, threads: int, memory: int, device: torch.device) -> int:
    """How many clusters of so many blocks run at once. Multiprocessors are in groups of an even number: pairs leave none over."""
    if blocks <= 2:
        return sm_count(device) // blocks
    driver, _ = bindings()
    with torch.cuda.device(device):
        return int(good(driver.cuOccupancyMaxActiveClusters(kernel, _config(blocks, threads, memory))))


def _config(blocks: int, threads: int, memory: int) -> Any:
    config = bindings()[0].CUlaunchConfig()
    config.gridDimX, config.blockDimX, config.sharedMemBytes = blocks, threads, memory
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    return config


@cache
def _may_begin_early() -> Any:
    driver, _ = bindings()
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute
