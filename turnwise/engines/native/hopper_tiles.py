"""Products for Hopper GPUs of which not all that is multiplied is written (`hopper_tiles.cu`): how they are compiled and launched.

Parts of x and of the weights that several multiprocessors need are sent to all of them by one copy, which neither the library does with so
few rows nor Triton at all. The source is compiled at first use by NVRTC, which torch brings, in a second or less for each kind of tile.
`gate_tiles.py` is the gated product of an MLP, `head_tiles.py` the output layer with the draw.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from ctypes import c_int, c_void_p
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

ROWS, INNER = 128, 64  # of a tile, and of one part of the inner size
PIECE = 16  # columns of an output layer whose weights are summed
STORED = 32  # columns of an output layer that a warp writes at once, of 16 rows
ROOM = 227 << 10  # bytes of a multiprocessor's memory that a block may take
THREADS = 384


class Tile(NamedTuple):
    """One block's tile: `columns` of the product, a multiple of 8; `stages` parts on their way; `down` × `across` blocks that share what
    they read, each 1 or 2; `group`: how many clusters' rows are worked on together; `ahead`: how many parts of the weights are
    asked for before the last kernel has ended, if they overlap."""

    columns: int
    stages: int
    down: int = 1
    across: int = 1
    group: int = 8
    ahead: int = 2

    @property
    def stage_memory(self) -> int:
        return self.stages * (2 * INNER * (ROWS + 2 * self.columns) + 16)

    @property
    def buffers(self) -> int:
        """How many buffers each of the eight writing warps has for logits."""
        return min(2, (ROOM - self.stage_memory) // (ROWS * STORED * 4))

    def memory(self, head: int) -> int:
        """Of a block: without an output layer, with one (1), and with one that is written (2)."""
        line = 2 * self.columns + (16 if self.columns % 16 == 0 else 0)
        return self.stage_memory + (ROWS * line, 0, ROWS * self.buffers * STORED * 4)[head]


def launch(
    kernel: Any, x: Tensor, weight: Tensor, tile: Tile, across: int, memory: int, overlap: bool, places: Sequence[Tensor], size: int,
    written: Tensor | None = None,
) -> None:  # fmt: skip
    """Run a kernel of `hopper_tiles.cu`: `across` tiles in a row of tiles, `places` what it writes to and reads beside the two matrices,
    and `written` a matrix that the copy engine writes."""
    (rows, width), driver, blocks = x.shape, _bindings()[0], tile.down * tile.across
    tiles = -(-rows // (ROWS * tile.down)) * -(-across // tile.across)
    config = driver.CUlaunchConfig()
    config.gridDimX = min(tiles, _clusters(kernel, blocks, memory, x.device)) * blocks
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.blockDimX, config.sharedMemBytes = THREADS, memory
    config.hStream = torch.cuda.current_stream(x.device).cuda_stream
    if overlap:
        config.attrs, config.numAttrs = [_may_begin_early()], 1
    maps: tuple[Any, ...] = _map(x.data_ptr(), rows, width, ROWS // tile.across), _map(weight.data_ptr(), len(weight), width, tile.columns)
    maps += () if written is None else (_map(written.data_ptr(), *written.shape, 16, STORED, 4),)
    given = *maps, *(place.data_ptr() for place in places), rows, size, width // INNER, tile.group
    kinds = *(None for _ in maps), *(c_void_p for _ in places), c_int, c_int, c_int, c_int
    with torch.cuda.device(x.device):
        _good(driver.cuLaunchKernelEx(config, kernel, (given, kinds), 0))


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel takes a product: plain rows of bfloat16, whole parts, and rows that begin at 16 bytes."""
    kind = x.dtype == weight.dtype == torch.bfloat16 and x.is_contiguous() and weight.is_contiguous()
    return bool(kind and x.shape[1] % INNER == 0 and len(weight) % 16 == 0 and x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0)


@cache
def available(device: torch.device) -> bool:
    """Whether this GPU is a Hopper and the kernel can be compiled for it."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0) or find_spec("cuda") is None:
        return False
    try:
        kernel_of(Tile(64, 2), 0, False, False, device)
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        warnings.warn(f"the engine's own kernel for gated products cannot be compiled, the library's is used: {error}", stacklevel=2)
        return False
    return True


def name_of(head: int) -> str:
    """Of a kernel, as a profiler shows it."""
    return "head_tiles" if head else "gate_tiles"


def source_of(tile: Tile, head: int, gelu: bool, overlap: bool) -> str:
    """What is compiled: a gated product (`head` 0), an output layer's (1), or one that also writes the logits (2)."""
    values = {
        "COLUMNS": tile.columns, "STAGES": tile.stages, "DOWN": tile.down, "ACROSS": tile.across, "AHEAD": min(tile.ahead, tile.stages),
        "HEAD": head, "NAME": name_of(head), "PIECE": PIECE, "BUFFERS": tile.buffers, "GELU": int(gelu), "OVERLAP": int(overlap),
    }  # fmt: skip
    defined = "".join(f"#define {name} {value}\n" for name, value in values.items())
    return defined + _multiply(tile.columns) + Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")


def _multiply(count: int) -> str:
    """sums (+)= 64 rows × 16 of one matrix times 2 · count rows × 16 of another: the instruction names every register."""
    registers = ", ".join(f"%{n}" for n in range(count))
    outputs = ", ".join(f'"+f"(sums[{n}])' for n in range(count))
    return (
        f"__device__ __forceinline__ void multiply(float (&sums)[{count}], unsigned long long x, unsigned long long weight, int add) {{\n"
        f'    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\nwgmma.mma_async.sync.aligned.m64n{2 * count}k16'
        f'.f32.bf16.bf16 {{{registers}}}, %{count}, %{count + 1}, p, 1, 1, 0, 0;\\n}}"\n'
        f'        : {outputs} : "l"(x), "l"(weight), "r"(add));\n}}\n'
    )


@cache
def _bindings() -> tuple[Any, Any]:
    """CUDA's driver and compiler."""
    from cuda.bindings import driver, nvrtc  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return driver, nvrtc


def _good(answer: tuple[Any, ...]) -> Any:
    """What a call has returned, if it says that all is well."""
    code, *rest = answer
    if int(code) != 0:
        raise RuntimeError(f"CUDA says {code.name}")
    return rest[0] if len(rest) == 1 else rest


@cache
def kernel_of(tile: Tile, head: int, gelu: bool, overlap: bool, device: torch.device) -> Any:
    driver, _ = _bindings()
    memory = tile.memory(head)
    with torch.cuda.device(device):
        torch.cuda.current_stream()  # the device has a context
        module = _good(driver.cuModuleLoadData(_compiled(source_of(tile, head, gelu, overlap))))
        kernel = _good(driver.cuModuleGetFunction(module, name_of(head).encode()))
        _good(driver.cuFuncSetAttribute(kernel, driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, memory))
    return kernel


@cache
def _compiled(source: str) -> bytes:
    _, nvrtc = _bindings()
    program = _good(nvrtc.nvrtcCreateProgram(source.encode(), b"hopper_tiles.cu", 0, [], []))
    options = [b"--gpu-architecture=sm_90a", b"--std=c++17"]
    if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) != 0:
        log = b" " * _good(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError("hopper_tiles.cu does not compile:\n" + log.decode(errors="replace").strip("\0 \n"))
    image: bytes = b" " * _good(nvrtc.nvrtcGetCUBINSize(program))
    _good(nvrtc.nvrtcGetCUBIN(program, image))
    nvrtc.nvrtcDestroyProgram(program)
    return image


@lru_cache(maxsize=4096)
def _map(place: int, rows: int, width: int, box: int, inner: int = INNER, bytes_each: int = 2) -> Any:
    """How the copy engine finds boxes of so many rows, 128 bytes wide, in a matrix of bfloat16 or float32; outside of it are zeros."""
    d, _ = _bindings()
    number, kinds = d.cuuint32_t, d.CUtensorMapDataType
    kind = kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 if bytes_each == 2 else kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32
    return _good(
        d.cuTensorMapEncodeTiled(
            kind, 2, place, [d.cuuint64_t(width), d.cuuint64_t(rows)],
            [d.cuuint64_t(bytes_each * width)], [number(inner), number(box)], [number(1), number(1)],
            d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, d.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B, d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )  # fmt: skip


@cache
def _may_begin_early() -> Any:
    driver, _ = _bindings()
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


@cache
def _clusters(kernel: Any, blocks: int, memory: int, device: torch.device) -> int:
    """How many clusters of so many blocks run at once. Multiprocessors are in groups of an even number: pairs leave none over."""
    if blocks <= 2:
        return int(torch.cuda.get_device_properties(device).multi_processor_count) // blocks
    driver, _ = _bindings()
    launch = driver.CUlaunchConfig()
    launch.gridDimX, launch.blockDimX, launch.sharedMemBytes = blocks, THREADS, memory
    launch.gridDimY = launch.gridDimZ = launch.blockDimY = launch.blockDimZ = 1
    with torch.cuda.device(device):
        return int(_good(driver.cuOccupancyMaxActiveClusters(kernel, launch)))
