// Products for Hopper GPUs of which not all that is multiplied is written: rows of x times rows of a weight, both bfloat16 with the inner
// size contiguous. Sums are float32.
//
// HEAD 0: activation(x · gate) * (x · up). The weight's first half is the gate; each factor is rounded to bfloat16 before the next thing is
// done with it. HEAD 1: of every tile of an output layer and every row, the largest logit, for a greedy row the column where it is, and
// the sum of exp((logit - largest) / temperature), also by parts of PIECE columns. HEAD 2: instead of the parts, such sums of the logits
// that are not below each of the row's two levels; and the logits are written.
//
// One block per SM takes one tile after another. Its first warpgroup asks TMA for the next parts of both
// matrices; the two others multiply, 64 rows each, and write. Blocks of a cluster that need the same part each bring a piece of it and send
// it to all of them. A multiplying warp reports that it has read a stage to every block that writes into it.
//
// Given by the host: COLUMNS of the product in a tile, STAGES of parts that are on their way, DOWN × ACROSS blocks in a cluster (each 1
// or 2), HEAD, NAME of the kernel, PIECE, BUFFERS (in which a warp puts logits that are to be written), GELU, OVERLAP (the kernel may begin before the last one
// has ended), AHEAD (parts of the weights that it asks for until then), and the function `multiply`.

struct alignas(64) Map { char bytes[128]; };

#define ROWS 128
#define INNER 64
#define BLOCKS (DOWN * ACROSS)
#define WRITERS (DOWN + ACROSS - 1)
#define BOX_BYTES (COLUMNS * INNER * 2)
#define X_BYTES (ROWS * INNER * 2)
#define STAGE_BYTES (X_BYTES + 2 * BOX_BYTES)
#define LINE (COLUMNS * 2 + (COLUMNS % 16 == 0 ? 16 : 0))  // of what is written, so that no two rows meet in a bank of the memory
#define PIECES (COLUMNS / 8)
#if HEAD
#define WIDE (2 * COLUMNS)  // columns of a tile
#define SECOND COLUMNS      // where the second box of its weights is, from the first
#define OUT_BYTES (HEAD == 2 ? 8 * BUFFERS * STORED_BYTES : 0)
#define PARTS (WIDE / PIECE)
#define STORED 32  // columns of the 16 rows of a warp that are written at once
#define STORED_BYTES (16 * STORED * 4)
#else
#define WIDE COLUMNS
#define SECOND size
#define OUT_BYTES (ROWS * LINE)
#endif

__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}"
        ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void report(u32 barrier, u32 block) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}"
        ::"r"(barrier), "r"(block) : "memory");
}

__device__ __forceinline__ void meet() {
#if BLOCKS > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// Copy a box of a matrix to this place of the given blocks of the cluster, if there are several, or to that of this one.
template <bool SEVERAL>
__device__ __forceinline__ void bring(u32 target, const Map* map, int column, int row, u32 barrier, unsigned short blocks) {
    if (SEVERAL)
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
            " [%0], [%1, {%2, %3}], [%4], %5;"
            ::"r"(target), "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks) : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
            ::"r"(target), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

// A matrix with rows of 128 bytes, swizzled, as the tensor cores read it.
__device__ __forceinline__ u64 matrix(u32 place) {
    return (u64)((place & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

// silu(x), or gelu(x) by its formula with tanh.
__device__ __forceinline__ float activated(float x) {
    float u = GELU ? 1.5957691216057308f * (x + 0.044715f * x * x * x) : x;
    float raised, found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(raised) : "f"(-1.4426950408889634f * u));
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(found) : "f"(x), "f"(1.0f + raised));
    return found;
}

__device__ __forceinline__ u32 gated(const float* gates, const float* ups) {
    u32 gate = rounded(gates[0], gates[1]), up = rounded(ups[0], ups[1]);
    u32 active = rounded(activated(low(gate)), activated(high(gate)));
    return rounded(low(active) * low(up), high(active) * high(up));
}

#if HEAD
// Write a box from this place of the block's memory to a matrix. What is outside of the matrix is left out.
__device__ __forceinline__ void send(const Map* map, int column, int row, u32 source) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
        ::"l"(map), "r"(column), "r"(row), "r"(source) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Over the four lanes that hold a row.
__device__ __forceinline__ float largest(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float summed(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

__device__ __forceinline__ int smallest(int x) {
    x = min(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return min(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
#endif

// Where a cluster's tile is: groups of rows first, so that clusters that run together read the same weights and the same rows.
__device__ __forceinline__ void place(int tile, int down, int across, int group, int& row, int& column) {
    int number = tile / (group * across), inside = tile % (group * across), height = min(down - number * group, group);
    row = number * group + inside % height;
    column = inside / height;
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(384, 1) NAME(
    const __grid_constant__ Map x_map, const __grid_constant__ Map weight_map,
#if HEAD
#if HEAD == 2
    const __grid_constant__ Map logits_map, const float* levels, float* above,
#else
    float* parts,
#endif
    const int* slots, const float* floats, const long long* integers, float* tops, float* totals, int* wheres,
#else
    unsigned short* out,
#endif
    int rows, int size, int steps, int group) {
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 base = address(memory), full = base + STAGES * STAGE_BYTES + OUT_BYTES, empty = full + STAGES * 8;
    int team = threadIdx.x / 128;
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    int own_down = rank % DOWN, own_across = rank / DOWN;
#if OVERLAP
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&weight_map) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&x_map) : "memory");
        for (int stage = 0; stage < STAGES; stage++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(full + stage * 8), "r"(1));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + stage * 8), "r"(8 * WRITERS));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    meet();
    int down = (rows + ROWS * DOWN - 1) / (ROWS * DOWN), across = (size + WIDE * ACROSS - 1) / (WIDE * ACROSS);
    int cluster = blockIdx.x / BLOCKS, clusters = gridDim.x / BLOCKS;
    int row, column;
    u32 number = 0;  // parts so far

    if (team == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            u32 before = 0;
            for (int tile = cluster; tile < down * across; tile += clusters) {
                place(tile, down, across, group, row, column);
                int x_row = (row * DOWN + own_down) * ROWS + own_across * (ROWS / ACROSS), gate = (column * ACROSS + own_across) * WIDE;
                auto bring_weights = [&](u32 stage, int step) {
                    u32 there = base + stage * STAGE_BYTES + X_BYTES, barrier = full + stage * 8;
                    unsigned short blocks = ((1 << DOWN) - 1) << (own_across * DOWN);
                    expect(barrier, STAGE_BYTES);
                    if (DOWN > 1) {
                        bring<true>(there + own_down * BOX_BYTES, &weight_map, step * INNER, own_down ? SECOND + gate : gate, barrier, blocks);
                    } else {
                        bring<false>(there, &weight_map, step * INNER, gate, barrier, 0);
                        bring<false>(there + BOX_BYTES, &weight_map, step * INNER, SECOND + gate, barrier, 0);
                    }
                };
#if OVERLAP
                if (number == 0) {  // weights do not depend on the last kernel
                    for (; before < AHEAD && (int)before < steps; before++) bring_weights(before, before);
                    asm volatile("griddepcontrol.wait;" ::: "memory");
                }
#endif
                for (int step = 0; step < steps; step++, number++) {
                    u32 stage = number % STAGES, there = base + stage * STAGE_BYTES + own_across * (X_BYTES / ACROSS);
                    if (number >= before) {
                        wait(empty + stage * 8, (number / STAGES & 1) ^ 1);
                        bring_weights(stage, step);
                    }
                    bring<(ACROSS > 1)>(there, &x_map, step * INNER, x_row, full + stage * 8, (DOWN > 1 ? 5 : 3) << own_down);
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        float sums[COLUMNS];
        int half = team - 1, lane = threadIdx.x % 32, warp = (threadIdx.x - 128) / 32;
        u32 writer = lane < DOWN ? own_across * DOWN + lane : (own_across ^ 1) * DOWN + own_down;  // a lane reports to one of them
#if !HEAD
        unsigned char* staging = memory + STAGES * STAGE_BYTES + warp * 16 * LINE;
        unsigned char* own = staging + lane / 4 * LINE + lane % 4 * 4;
#endif
        for (int tile = cluster; tile < down * across; tile += clusters) {
            place(tile, down, across, group, row, column);
            for (int step = 0; step < steps; step++, number++) {
                u32 stage = number % STAGES, there = base + stage * STAGE_BYTES;
                wait(full + stage * 8, number / STAGES & 1);
                u64 x = matrix(there + half * (X_BYTES / 2)), weight = matrix(there + X_BYTES);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int part = 0; part < INNER / 16; part++) multiply(sums, x + 2 * part, weight + 2 * part, step > 0 || part > 0);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (step > 0 && lane < WRITERS) report(empty + (number - 1) % STAGES * 8, writer);
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (lane < WRITERS) report(empty + (number - 1) % STAGES * 8, writer);
#if HEAD
            int number_across = column * ACROSS + own_across, tiles = (size + WIDE - 1) / WIDE, first_column = number_across * WIDE + lane % 4 * 2;
            if ((number_across + 1) * WIDE > size) {
#pragma unroll
                for (int i = 0; i < 4 * 2 * PIECES; i++)
                    if (first_column + i / 4 * 8 + i % 2 >= size) sums[i] = NOTHING;
            }
            int mine[2], where[2] = {size - 1, size - 1};  // two rows
            float scale[2], top[2], shift[2], total[2] = {0.0f, 0.0f};
#if HEAD == 2
            float near[2], far[2], above_near[2] = {0.0f, 0.0f}, above_far[2] = {0.0f, 0.0f};
#endif
            bool real = number_across < tiles;
#pragma unroll
            for (int side = 0; side < 2; side++) {
                mine[side] = (row * DOWN + own_down) * ROWS + warp * 16 + lane / 4 + side * 8;
                bool known = mine[side] < rows;
#if HEAD == 2
                near[side] = known ? levels[2 * mine[side]] : 0.0f, far[side] = known ? levels[2 * mine[side] + 1] : 0.0f;
#endif
                long long slot = known ? 3ll * slots[mine[side]] : 0;
                scale[side] = known ? 1.4426950408889634f / floats[slot] : 0.0f;
                bool greedy = __any_sync(0xffffffffu, known && integers[slot] != 0);
                top[side] = NOTHING;
#pragma unroll
                for (int i = 2 * side; i < 8 * PIECES; i += 4) top[side] = fmaxf(top[side], fmaxf(sums[i], sums[i + 1]));
                top[side] = largest(top[side]);
                shift[side] = -top[side] * scale[side];
                if (greedy) {
#pragma unroll
                    for (int piece = 2 * PIECES - 1; piece >= 0; piece--) {
                        where[side] = sums[4 * piece + 2 * side + 1] == top[side] ? first_column + piece * 8 + 1 : where[side];
                        where[side] = sums[4 * piece + 2 * side] == top[side] ? first_column + piece * 8 : where[side];
                    }
                    where[side] = smallest(where[side]);
                }
            }
#if HEAD == 2
#pragma unroll
            for (int box = 0; box < WIDE / STORED; box++) {  // TMA writes one box while the next one is summed up
                u32 there = base + STAGES * STAGE_BYTES + (warp * BUFFERS + box % BUFFERS) * STORED_BYTES;
                const float* values = sums + box * (STORED / 2);
                if (lane == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(BUFFERS - 1) : "memory");
                __syncwarp();
#pragma unroll
                for (int piece = 0; piece < STORED / 8; piece++) {
                    u32 own = there + lane / 4 * 128 + ((piece * 2 + lane % 4 / 2 ^ lane / 4) << 4) + lane % 2 * 8;
#pragma unroll
                    for (int side = 0; side < 2; side++)
                        asm volatile("st.shared.v2.f32 [%0], {%1, %2};"
                            ::"r"(own + side * 8 * 128), "f"(values[4 * piece + 2 * side]), "f"(values[4 * piece + 2 * side + 1]) : "memory");
                }
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncwarp();
                if (lane == 0) send(&logits_map, number_across * WIDE + box * STORED, (row * DOWN + own_down) * ROWS + warp * 16, there);
#pragma unroll
                for (int i = 0; i < STORED / 2; i++) {
                    int side = i / 2 % 2;
                    float weight = power(fmaf(values[i], scale[side], shift[side]));
                    total[side] += weight;
                    above_near[side] += values[i] >= near[side] ? weight : 0.0f;
                    above_far[side] += values[i] >= far[side] ? weight : 0.0f;
                }
            }
#endif
#pragma unroll
            for (int side = 0; side < 2; side++) {
                long long here = (long long)mine[side] * tiles + number_across;
                bool written = real && mine[side] < rows;
#if HEAD == 2
                total[side] = summed(total[side]), above_near[side] = summed(above_near[side]), above_far[side] = summed(above_far[side]);
                if (written && lane % 4 < 2)
                    above[lane % 4 * (long long)rows * tiles + here] = lane % 4 ? above_far[side] : above_near[side];
#else
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    float sum = 0.0f;
#pragma unroll
                    for (int i = PIECE / 2 * part + 2 * side; i < PIECE / 2 * (part + 1); i += 4)
                        sum += power(fmaf(sums[i], scale[side], shift[side])) + power(fmaf(sums[i + 1], scale[side], shift[side]));
                    sum = summed(sum);
                    total[side] += sum;
                    if (written && lane % 4 == part % 4) parts[here * PARTS + part] = sum;
                }
#endif
                if (written && lane % 4 == 0) {
                    tops[here] = top[side];
                    totals[here] = total[side];
                    wheres[here] = min(where[side], size - 1);  // of nothing but NaN, the largest is beyond the last column
                }
            }
#else
#pragma unroll
            for (int piece = 0; piece < PIECES; piece++) {
                const float *gates = sums + 4 * piece, *ups = gates + 4 * PIECES;
                *(u32*)(own + piece * 16) = gated(gates, ups);
                *(u32*)(own + 8 * LINE + piece * 16) = gated(gates + 2, ups + 2);
            }
            __syncwarp();
            int first_row = (row * DOWN + own_down) * ROWS + warp * 16, first_column = (column * ACROSS + own_across) * COLUMNS;
#pragma unroll
            for (int i = lane; i < 16 * PIECES; i += 32) {
                int line = i / PIECES, piece = i % PIECES, here = first_column + piece * 8;
                if (first_row + line < rows && here < size)
                    *(int4*)(out + (long long)(first_row + line) * size + here) = *(int4*)(staging + line * LINE + piece * 16);
            }
            __syncwarp();
#endif
        }
    }
#if HEAD == 2
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
    meet();  // nobody leaves while others may write to its memory
}
