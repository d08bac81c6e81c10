"""Runs `hopper_attention.cu` without a GPU: `cuda_on_cpu.h` has what takes the place of a GPU's instructions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

# What an instruction in the source becomes, by how it begins. `{0}`: its last number.
INSTRUCTIONS = {
    "cp.async.cg.shared.global": "machine::copy(target, source)",
    "cp.async.commit_group": "machine::commit()",
    "cp.async.wait_group": "machine::wait_for_copies({0})",
    "mov.u32": "(void)0",
    "cvt.rn.bf16x2.f32": "both = machine::pack(low, high)",
    "ex2.approx.ftz.f32": "found = exp2f(x)",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16": "machine::load_matrices(found, place, false)",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16": "machine::load_matrices(found, place, true)",
    "movmatrix.sync.aligned.m8n8.trans.b16": "found = machine::turn_matrix(both)",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": "machine::multiply_matrices(sums, rows, first, second)",
}
PLACES = "qkv", "cache", "table", "slots", "positions", "cos", "sin", "q_norm", "k_norm", "out", "counters"  # in the kernel's order
MAIN = """
static unsigned char* places[11];
static long long row_stride, value_bytes;
static int table_stride, items;
static float scale, eps;
static void kernel() {
    auto p = places;
    run::NAME((u16*)p[0], (u16*)p[1], (int*)p[2], (int*)p[3], (int*)p[4], (u16*)p[5], (u16*)p[6], p[7], p[8], (u16*)p[9], (int*)p[10],
        row_stride, value_bytes, table_stride, items, scale, eps);
}
int main(int, char** given) {
    std::string folder = given[1];
    unsigned blocks = atoi(given[2]), memory = atoi(given[3]), launches = atoi(given[4]);
    row_stride = atoll(given[5]), value_bytes = atoll(given[6]), table_stride = atoi(given[7]), items = atoi(given[8]);
    scale = atof(given[9]), eps = atof(given[10]);
    const char* names[11] = {%s};
    std::vector<size_t> sizes;
    for (int n = 0; n < 11; n++) {
        std::ifstream file(folder + "/" + names[n], std::ios::binary);
        std::string bytes((std::istreambuf_iterator<char>(file)), {});
        sizes.push_back(bytes.size());
        places[n] = machine::guarded(bytes.size(), 16);
        std::memcpy(places[n], bytes.data(), bytes.size());
    }
    machine::cache_begin = places[1], machine::cache_end = places[1] + sizes[1];
    for (unsigned seed = 0; seed < launches; seed++) {
        std::memset(places[9], 0xff, sizes[9]);
        machine::launch(blocks, run::THREADS, memory, kernel, seed);
        for (int n : {1, 9, 10})
            std::ofstream(folder + "/" + names[n] + std::to_string(seed), std::ios::binary).write((const char*)places[n], sizes[n]);
    }
}
"""


def translated(source: str) -> str:
    """The source with calls in the place of instructions, and a program around it."""

    def call(found: re.Match[str]) -> str:
        words = found[1].lstrip('" \n')
        name = re.match(r"[\w.:]+", words)
        numbers = re.findall(r" (\d+);\"", words)
        assert name is not None
        return INSTRUCTIONS[name[0]].format(*numbers[-1:]) + ";"

    source = re.sub(r"\basm(?: volatile)?\((.*?)\);", call, source, flags=re.DOTALL)
    source, count = re.subn(r"extern __shared__ [^;]*;", "unsigned char* memory = machine::self->block->memory;", source)
    assert count == 1
    defined, body = source.split("\n//", 1)
    body = body.replace("#define THREADS (32 * TEAM)", "static const int THREADS = 32 * TEAM;")
    names = ", ".join(f'"{name}"' for name in PLACES)
    return f'#include "cuda_on_cpu.h"\n{defined}\nnamespace run {{\n//{body}\n}}\nusing run::u16;\n{MAIN % names}'


def build(source: str, folder: Path) -> Path:
    program, text = folder / "kernel", folder / "kernel.cpp"
    text.write_text(translated(source), encoding="utf-8")
    command = ["g++", "-std=c++17", "-O1", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-w", "-I", str(Path(__file__).parent)]
    subprocess.run([*command, str(text), "-o", str(program)], check=True)
    return program


def run(
    program: Path, places: Sequence[Tensor], blocks: int, memory: int, launches: int, numbers: Sequence[float]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The cache, the results and the counters after each launch. `places` and `numbers` are the kernel's arguments."""
    folder = program.parent
    for name, place in zip(PLACES, places, strict=True):
        (folder / name).write_bytes(place.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    done = subprocess.run([program, folder, *map(str, (blocks, memory, launches, *numbers))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"

    def read(n: int, seed: int) -> Tensor:
        data = bytearray((folder / f"{PLACES[n]}{seed}").read_bytes())
        return torch.frombuffer(data, dtype=places[n].dtype).view(places[n].shape)

    return [(read(1, seed), read(9, seed), read(10, seed)) for seed in range(launches)]
