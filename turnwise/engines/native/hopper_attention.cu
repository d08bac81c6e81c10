// Attention of a decode step for Hopper GPUs: one query token per lane over pages of keys and values in bfloat16. Sums are float32.
//
// A block takes up one item after another: a lane and one of its key heads. Each of its TEAM warps takes every TEAM-th page of it, and asks
// for the keys and values of its next page as soon as it has read those of the last one, across the border between two items: while a block
// puts together what its warps have found and prepares the next queries, the memory works on. Who is done takes the next item that nobody
// has.
//
// Queries are the columns of a product whose rows are tokens: the up to eight heads that share a key head are as many as the tensor
// cores' smallest side, so little is padded. That takes half of the instructions of the kernel in Triton, and a GPU at its power limit is
// the faster the less it does. The newest token's key and value are put into the copy of its page, not read from it.
//
// Given by the host: NAME of the kernel, SIZE of a head (64 or 128), HEADS, KV heads, NORM of queries and keys (0: none, 1: weights in
// bfloat16, 2: in float32), TEAM, BLOCKS that share a multiprocessor.


#define GROUP (HEADS / KV)
#define PAGE 64
#define LOT 16  // tokens that are read or left out together, behind a row's end
#define BOXES (SIZE / 64)
#define LINES (BOXES * 128)  // bytes of a token
#define EACH (SIZE / 32)  // numbers of a head that a lane of a warp has
#define PAGE_BYTES (PAGE * LINES)
#define COPIES (LOT * LINES / 512)  // of a warp, for a lot
#define WIDE (SIZE + 8)  // of a query in the block's memory, so that no two lanes meet in a bank; also below
#define LONG (SIZE + 4)
#define QUERIES (TEAM * 2 * PAGE_BYTES)
#define FRESH (QUERIES + 8 * WIDE * 2)
#define FOUND (FRESH + 2 * SIZE * 2)
#define SIDES (FOUND + TEAM * 8 * LONG * 4)  // the largest score and the sum of weights, by warp and query
#define COMING (QUERIES + SIZE * 2)  // the next item's number, behind the first query
#define TASKS ((GROUP + 1 + TEAM) / TEAM)  // of a warp: queries, and the newest key and value
#define THREADS (32 * TEAM)

// Copy 16 bytes; the copies since the last `done_asking` are one group.
__device__ __forceinline__ void bring(u32 target, const unsigned char* source) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

__device__ __forceinline__ void done_asking() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all groups but the last one have arrived.
__device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();
}

template <bool VALUE> struct Truth { static constexpr bool value = VALUE; };

// A number that is kept, and not computed again wherever it is used.
__device__ __forceinline__ u32 kept(u32 x) {
    asm volatile("mov.u32 %0, %0;" : "+r"(x));
    return x;
}

__device__ __forceinline__ void four(u32 (&found)[4], u32 place) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3]) : "r"(place) : "memory");
}

__device__ __forceinline__ void four_turned(u32 (&found)[4], u32 place) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3]) : "r"(place) : "memory");
}

__device__ __forceinline__ u32 turned(u32 both) {
    u32 found;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(found) : "r"(both));
    return found;
}

__device__ __forceinline__ void multiply(float (&sums)[4], const u32 (&rows)[4], u32 first, u32 second) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(first), "r"(second));
}

// Over the eight lanes that hold a query's tokens.
__device__ __forceinline__ float largest(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 4));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 8));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 16));
}

__device__ __forceinline__ float summed(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

// Norm (Qwen3) and rotation of a head that a warp has, rounded where transformers rounds.
__device__ __forceinline__ void rotated(
    float (&x)[EACH], const void* norm, const u32 (&cos)[EACH / 2], const u32 (&sin)[EACH / 2], float eps, int lane) {
#if NORM
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) square += x[i] * x[i];
#pragma unroll
    for (int i = 1; i < 32; i *= 2) square += __shfl_xor_sync(0xffffffffu, square, i);
    float scale = rsqrtf(square / SIZE + eps);
#pragma unroll
    for (int i = 0; i < EACH; i += 2) {
        float first = x[i] * scale, second = x[i + 1] * scale;
#if NORM == 1
        u32 both = rounded(first, second), weights = ((const u32*)norm)[(lane * EACH + i) / 2];
        first = low(both) * low(weights), second = high(both) * high(weights);
#else
        first *= ((const float*)norm)[lane * EACH + i], second *= ((const float*)norm)[lane * EACH + i + 1];
#endif
        u32 done = rounded(first, second);
        x[i] = low(done), x[i + 1] = high(done);
    }
#endif
#pragma unroll
    for (int i = 0; i < EACH; i += 2) {
        u32 c = cos[i / 2], s = sin[i / 2];
        float first = __shfl_xor_sync(0xffffffffu, x[i], 16), second = __shfl_xor_sync(0xffffffffu, x[i + 1], 16);
        x[i] = x[i] * low(c) + first * low(s), x[i + 1] = x[i + 1] * high(c) + second * high(s);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(
    const u16* qkv, u16* cache, const int* table, const int* slots, const int* positions, const u16* cos, const u16* sin,
    const void* q_norm, const void* k_norm, u16* out, int* counters, long long row_stride, long long value_bytes, int table_stride,
    int items, float scale, float eps) {
    extern __shared__ __align__(1024) unsigned char memory[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = lane / 4, pair = lane % 4;
    u32 base = address(memory), keys = base + warp * 2 * PAGE_BYTES, values = keys + PAGE_BYTES;
    volatile int* coming = (volatile int*)(memory + COMING);  // the next item's number, and for which turn of this block it was chosen

    struct Item {
        int row, kv_head, length, slot, pages, end;  // lots of the last page
        const int* chain;
        int mine, newest;  // a lane has one number of every 32 pages of its warp; the number of the last page
        u32 raw[TASKS][EACH / 2], cos[EACH / 2], sin[EACH / 2];
    };
    auto begin = [&](Item& it, int number) {  // asks for what depends on the number alone; beyond the last item, one without pages
        it.row = number < items ? number / KV : 0, it.kv_head = number % KV, it.pages = number < items;
        it.length = positions[it.row] + 1, it.slot = slots[it.row];
    };
    auto go_on = [&](Item& it) {  // asks for what depends on that
        it.chain = table + (long long)it.slot * table_stride;
        it.pages = it.pages ? (it.length + PAGE - 1) / PAGE : 0, it.end = (it.length - 1) % PAGE / LOT + 1;
        it.mine = it.chain[max(min(warp + lane * TEAM, it.pages - 1), 0)], it.newest = it.chain[max(it.pages - 1, 0)];
    };
    auto ask_for_queries = [&](Item& it) {  // and the newest key and value
        long long turn = (long long)(it.length - 1) * SIZE + lane * EACH;
#pragma unroll
        for (int j = 0; j < EACH / 2; j++) it.cos[j] = ((const u32*)(cos + turn))[j], it.sin[j] = ((const u32*)(sin + turn))[j];
#pragma unroll
        for (int i = 0; i < TASKS; i++) {
            int task = min(warp + i * TEAM, GROUP + 1);
            int head = task < GROUP ? it.kv_head * GROUP + task : task == GROUP ? HEADS + it.kv_head : HEADS + KV + it.kv_head;
            const u32* from = (const u32*)(qkv + it.row * row_stride + head * SIZE + lane * EACH);
#pragma unroll
            for (int j = 0; j < EACH / 2; j++) it.raw[i][j] = from[j];
        }
    };

    u32 target[2], key_at[SIZE / 16], value_at[SIZE / 16];
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {  // where a lane's 16 bytes are put in the block's memory depends on the line that they are in
        int own_line = odd * 4 + lane / 8;
        target[odd] = kept(keys + own_line * 128 + ((lane % 8 ^ own_line) << 4));
    }
#pragma unroll
    for (int k = 0; k < SIZE / 16; k++) {  // the places of 16 × 16 keys and values
        u32 swizzle = (lane * BOXES + k / 4) % 8;
        key_at[k] = kept(keys + (lane / 8 % 2 * 8 + lane % 8) * LINES + k / 4 * 128 + ((k % 4 * 2 + lane / 16 ^ swizzle) << 4));
        value_at[k] = kept(values + (lane / 16 * 8 + lane % 8) * LINES + k / 4 * 128 + ((k % 4 * 2 + lane / 8 % 2 ^ swizzle) << 4));
    }
    auto ask = [&](int kv_head, int number, int lots, bool for_values) {  // for the first lots of a page
        const unsigned char* from = (const unsigned char*)cache + ((long long)number * KV + kv_head) * PAGE_BYTES + lane * 16;
        if (for_values) from += value_bytes;
        auto lot = [&](int which) {
#pragma unroll
            for (int i = 0; i < COPIES; i++)
                bring(target[i % 2] + which * LOT * LINES + i / 2 * 1024 + (for_values ? PAGE_BYTES : 0), from + which * LOT * LINES + i * 512);
        };
        lot(0);
        if (lots == PAGE / LOT) lot(1), lot(2), lot(3);
        else if (lots == 3) lot(1), lot(2);
        else if (lots == 2) lot(1);
        done_asking();
    };

    auto prepare = [&](const Item& it) {  // queries, and the newest key and value
        long long place = ((long long)it.newest * KV + it.kv_head) * PAGE + (it.length - 1) % PAGE;
#pragma unroll
        for (int i = 0; i < TASKS; i++) {
            int task = warp + i * TEAM;
            float x[EACH];
#pragma unroll
            for (int j = 0; j < EACH / 2; j++) x[2 * j] = low(it.raw[i][j]), x[2 * j + 1] = high(it.raw[i][j]);
            if (task <= GROUP) rotated(x, task < GROUP ? q_norm : k_norm, it.cos, it.sin, eps, lane);
            if (task < GROUP + 2) {
                u32* here = (u32*)(memory + (task < GROUP ? QUERIES + task * WIDE * 2 : FRESH + (task - GROUP) * SIZE * 2)) + lane * (EACH / 2);
                u32* there = (u32*)((unsigned char*)(cache + place * SIZE) + (task > GROUP ? value_bytes : 0)) + lane * (EACH / 2);
#pragma unroll
                for (int j = 0; j < EACH / 2; j++) {
                    u32 both = rounded(x[2 * j], x[2 * j + 1]);
                    here[j] = both;
                    if (task >= GROUP) there[j] = both;
                }
            }
        }
    };
    auto ask_for_first = [&](const Item& it) {
        int first = __shfl_sync(0xffffffffu, it.mine, 0), lots = warp == it.pages - 1 ? it.end : PAGE / LOT;
        ask(it.kv_head, first, lots, false), ask(it.kv_head, first, lots, true);
    };

#pragma unroll 1
    for (int i = GROUP * WIDE / 2 + threadIdx.x; i < 8 * WIDE / 2; i += THREADS) ((u32*)(memory + QUERIES))[i] = 0;
    Item now, next;
    int number = blockIdx.x, number_of_next = 0, turn = 1;
    if (threadIdx.x == 0) coming[1] = 0;
    begin(now, number);
    go_on(now);
    bool asked = warp < now.pages;
    if (asked) ask_for_first(now);
    ask_for_queries(now);
    prepare(now);
#pragma unroll 1
    while (number < items) {
        if (!asked && warp < now.pages) ask_for_first(now);
        __syncthreads();
        u32 query[SIZE / 16][2];
#pragma unroll
        for (int k = 0; k < SIZE / 16; k++) {
            const u32* words = (const u32*)(memory + QUERIES + line * WIDE * 2) + k * 8 + pair;
            query[k][0] = words[0], query[k][1] = words[4];
        }
        float top[2] = {NOTHING, NOTHING}, total[2] = {0.0f, 0.0f}, sums[SIZE / 16][4];
#pragma unroll
        for (int i = 0; i < SIZE / 16; i++) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
        int mine = now.mine, count = 1, after = 0, known = 0;  // of the next item: 1: chosen, 2: said, 3: begun, 4: asked for
        auto say = [&]() {
            if (lane == 0) {
                coming[0] = after;
                __threadfence_block();
                coming[1] = turn;
            }
            known = 2;
        };
        auto get_ready = [&](int left) {  // as far as needed, with so many pages of this warp behind the present one
            if (warp == 0 && known == 1) say();
            if (warp == 0 && known == 0 && left <= 2) {  // late, so that blocks that are done early do more
                if (lane == 0) after = gridDim.x + atomicAdd(counters, 1);
                known = 1;
            }
            if (left > 1) return;
            if (warp == 0 && known == 1) say();
            if (known <= 2) {
                while (coming[1] != turn) __nanosleep(20);
                __threadfence_block();
                number_of_next = coming[0];
                begin(next, number_of_next);
                known = 3;
            }
            if (left == 0 && known == 3) go_on(next), ask_for_queries(next), known = 4;
        };

        auto attend = [&](auto whole, int page) {
            constexpr bool WHOLE = decltype(whole)::value;
            get_ready((now.pages - 1 - page) / TEAM);
            bool more = page + TEAM < now.pages;  // of this item
            if (more && count % 32 == 0) mine = now.chain[min(page + (1 + lane) * TEAM, now.pages - 1)];
            int coming_page = __shfl_sync(0xffffffffu, more ? mine : next.mine, more ? count % 32 : 0);
            int coming_head = more ? now.kv_head : next.kv_head;
            int coming_lots = more ? (page + TEAM == now.pages - 1 ? now.end : PAGE / LOT)
                : warp < next.pages ? (warp == next.pages - 1 ? next.end : PAGE / LOT) : 0;
            asked = coming_lots > 0, count++;
            int rest = now.length - page * PAGE, lots = WHOLE ? PAGE / LOT : now.end;
            auto renew = [&](u32 place, u32 fresh) {  // the newest token, in pieces of 16 bytes
                if (!WHOLE && lane < SIZE / 8) {
                    int own_line = (rest - 1) * BOXES + lane / 8;
                    *(int4*)(memory + (place - base) + own_line * 128 + ((lane % 8 ^ own_line % 8) << 4)) =
                        *(const int4*)(memory + fresh + lane * 16);
                }
                if (!WHOLE) __syncwarp();
            };
            wait();
            renew(keys, FRESH);
            float scores[4][4];
#pragma unroll
            for (int m = 0; m < 4; m++) scores[m][0] = scores[m][1] = scores[m][2] = scores[m][3] = 0.0f;
#pragma unroll
            for (int k = 0; k < SIZE / 16; k++) {
#pragma unroll
                for (int m = 0; m < 4; m++) {
                    if (WHOLE || m < lots) {
                        u32 rows[4];
                        four(rows, key_at[k] + m * 16 * LINES);
                        multiply(scores[m], rows, query[k][0], query[k][1]);
                    }
                }
            }
            __syncwarp();
            if (asked) ask(coming_head, coming_page, coming_lots, false);
            else done_asking();  // so that `wait` counts rightly
            if (!WHOLE) {
#pragma unroll
                for (int m = 0; m < 4; m++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (m * 16 + i / 2 * 8 + line >= rest) scores[m][i] = NOTHING;
            }
            float fade[2];
#pragma unroll
            for (int one = 0; one < 2; one++) {
                float highest = fmaxf(scores[0][one], scores[0][one + 2]);
#pragma unroll
                for (int m = 1; m < 4; m++) highest = fmaxf(highest, fmaxf(scores[m][one], scores[m][one + 2]));
                highest = fmaxf(top[one], largest(highest) * scale);
                fade[one] = power(top[one] - highest);
                top[one] = highest;
                total[one] *= fade[one];
#pragma unroll
                for (int m = 0; m < 4; m++)
#pragma unroll
                    for (int i = one; i < 4; i += 2) {
                        scores[m][i] = power(fmaf(scores[m][i], scale, -highest));
                        total[one] += scores[m][i];
                    }
            }
            if (__any_sync(0xffffffffu, fade[0] != 1.0f || fade[1] != 1.0f)) {
#pragma unroll
                for (int i = 0; i < SIZE / 16; i++)
                    sums[i][0] *= fade[0], sums[i][1] *= fade[1], sums[i][2] *= fade[0], sums[i][3] *= fade[1];
            }
            wait();
            renew(values, FRESH + SIZE * 2);
#pragma unroll
            for (int m = 0; m < 4; m++) {
                if (WHOLE || m < lots) {
                    u32 upper = turned(rounded(scores[m][0], scores[m][1])), lower = turned(rounded(scores[m][2], scores[m][3]));
#pragma unroll
                    for (int i = 0; i < SIZE / 16; i++) {
                        u32 columns[4];
                        four_turned(columns, value_at[i] + m * 16 * LINES);
                        multiply(sums[i], columns, upper, lower);
                    }
                }
            }
            __syncwarp();
            if (asked) ask(coming_head, coming_page, coming_lots, true);
            else done_asking();
        };
        asked = false;
        int page = warp;
#pragma unroll 1
        for (; page < now.pages - 1; page += TEAM) attend(Truth<true>(), page);
        if (page == now.pages - 1) attend(Truth<false>(), page);

        float *tops = (float*)(memory + SIDES), *totals = tops + TEAM * 8, *found = (float*)(memory + FOUND);
#pragma unroll
        for (int one = 0; one < 2; one++) {
            float all = summed(total[one]);
            int own = warp * 8 + pair * 2 + one;
            if (line == 0) tops[own] = top[one], totals[own] = all;
#pragma unroll
            for (int i = 0; i < SIZE / 16; i++)
                found[own * LONG + i * 16 + line] = sums[i][one], found[own * LONG + i * 16 + line + 8] = sums[i][one + 2];
        }
        __syncthreads();
        if (known != 4) get_ready(0);  // a warp without a page
        int row = now.row, kv_head = now.kv_head;
        now = next, number = number_of_next, turn++;
        if (number < items) prepare(now);
        for (int i = threadIdx.x; i < GROUP * SIZE / 2; i += THREADS) {
            int own = i / (SIZE / 2), column = i % (SIZE / 2) * 2;
            float highest = tops[own], all = 0.0f, first = 0.0f, second = 0.0f;
#pragma unroll
            for (int w = 1; w < TEAM; w++) highest = fmaxf(highest, tops[w * 8 + own]);
#pragma unroll
            for (int w = 0; w < TEAM; w++) {
                float weight = power(tops[w * 8 + own] - highest);
                const float* part = found + (w * 8 + own) * LONG + column;
                all += weight * totals[w * 8 + own], first += weight * part[0], second += weight * part[1];
            }
            ((u32*)out)[(((long long)row * HEADS + kv_head * GROUP + own) * SIZE + column) / 2] = rounded(first / all, second / all);
        }
    }
    if (threadIdx.x == 0 && atomicAdd(counters + 1, 1) == gridDim.x - 1) counters[0] = counters[1] = 0;  // as the next layer expects them
}
