// A kernel's source, run by an ordinary compiler: as many instructions of a warp and of its tensor cores as `hopper_attention.cu` uses.
//
// All threads of all blocks take turns on one thread, in an order that a seed decides; they change places only where threads wait for
// each other. So what is right only if threads happen to be in step comes out wrong for some seed. A copy that is under way destroys what
// is at its target at once and brings what it copies as late as it may, as it was at the beginning or is at the end: who reads too early or
// overwrites too early finds no numbers. Memory ends at pages that nobody may touch.

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct int4 { int x, y, z, w; };
struct Place { unsigned x; };
static Place threadIdx, blockIdx, gridDim;

namespace machine {

struct Copy {
    unsigned char* target;
    const unsigned char* source;
    unsigned char early[16];  // what was at the source when it was asked for
};

struct Warp {
    long arrived = 0;
    int kind[2] = {0, 0};
    uint32_t words[2][32][8];
    int held = 0;  // turns that it is left out
};

struct Block {
    long arrived = 0, threads = 0;
    unsigned char* memory = nullptr;
    size_t bytes = 0;
    std::vector<Warp> warps;
};

struct Thread {
    Place place, block_place;
    Block* block;
    Warp* warp;
    int lane;
    long warp_calls = 0, block_calls = 0, until = 0;
    const long* watched = nullptr;
    std::vector<std::vector<Copy>> groups{{}};  // the last one is not committed
    jmp_buf here;
    ucontext_t start;
    bool begun = false, done = false;
    std::unique_ptr<char[]> stack;
};

static Thread* self;
static jmp_buf scheduler;
static std::mt19937 chance;
static void (*work)();
static const unsigned char *cache_begin, *cache_end;
static const uint32_t BASE = 4096;  // of the block's memory, as its threads see it

[[noreturn]] static void fail(const char* words) {
    std::fprintf(stderr, "%s\n", words);
    std::_Exit(3);
}

__attribute__((noinline)) static void wait_until(const long* watched, long until) {
    self->watched = watched, self->until = until;
    if (!_setjmp(self->here)) _longjmp(scheduler, 1);
}

// All lanes of a warp meet; returns what each of them has brought.
__attribute__((noinline)) static uint32_t (*meet(int kind, const uint32_t* words, int count))[8] {
    Warp& warp = *self->warp;
    long call = self->warp_calls++;
    int turn = call % 2;
    if (warp.arrived == 32 * call) warp.kind[turn] = kind;
    else if (warp.kind[turn] != kind) fail("lanes of a warp meet at different instructions");
    for (int i = 0; i < count; i++) warp.words[turn][self->lane][i] = words[i];
    warp.arrived++;
    wait_until(&warp.arrived, 32 * (call + 1));
    return warp.words[turn];
}

static float of_half(uint32_t both, int odd) {
    uint32_t bits = odd ? both & 0xffff0000u : both << 16;
    float found;
    std::memcpy(&found, &bits, 4);
    return found;
}

static uint32_t half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static uint32_t pack(float low, float high) { return half(low) | half(high) << 16; }

static unsigned char* shared(uint32_t place, uint32_t bytes) {
    bool inside = place >= BASE && place - BASE + bytes <= self->block->bytes;
    if (!inside || place % bytes) fail("a place outside of the block's memory, or between two");
    return self->block->memory + (place - BASE);
}

static void copy(uint32_t target, const unsigned char* source) {
    if (source < cache_begin || source + 16 > cache_end) fail("a copy from outside of the cache");
    unsigned char* place = shared(target, 16);
    std::memset(place, 0xff, 16);
    Copy one{place, source, {}};
    std::memcpy(one.early, source, 16);
    self->groups.back().push_back(one);
}

static void commit() { self->groups.emplace_back(); }

static void wait_for_copies(int left) {
    while ((int)self->groups.size() - 1 > left) {
        for (const Copy& one : self->groups.front()) std::memcpy(one.target, chance() % 2 ? one.source : one.early, 16);
        self->groups.erase(self->groups.begin());
    }
}

static void load_matrices(uint32_t (&found)[4], uint32_t place, bool turned) {
    auto places = meet(turned ? 2 : 1, &place, 1);
    int line = self->lane / 4, pair = self->lane % 4 * 2;
    for (int m = 0; m < 4; m++) {
        auto number = [&](int row, int column) { return (uint32_t)((uint16_t*)shared(places[8 * m + row][0], 16))[column]; };
        found[m] = turned ? number(pair, line) | number(pair + 1, line) << 16 : number(line, pair) | number(line, pair + 1) << 16;
    }
}

static uint32_t turn_matrix(uint32_t both) {
    auto all = meet(4, &both, 1);
    auto number = [&](int row, int column) { return all[row * 4 + column / 2][0] >> 16 * (column % 2) & 0xffff; };
    int line = self->lane / 4, pair = self->lane % 4 * 2;
    return number(pair, line) | number(pair + 1, line) << 16;
}

static void multiply_matrices(float (&sums)[4], const uint32_t (&rows)[4], uint32_t first, uint32_t second) {
    uint32_t own[6] = {rows[0], rows[1], rows[2], rows[3], first, second};
    auto all = meet(5, own, 6);
    for (int i = 0; i < 4; i++) {
        int row = self->lane / 4 + i / 2 * 8, column = self->lane % 4 * 2 + i % 2;
        double sum = sums[i];
        for (int k = 0; k < 16; k++) {
            float a = of_half(all[row % 8 * 4 + k % 8 / 2][k / 8 * 2 + row / 8], k % 2);
            sum += (double)a * of_half(all[column * 4 + k % 8 / 2][4 + k / 8], k % 2);
        }
        sums[i] = (float)sum;
    }
}

static unsigned char* guarded(size_t bytes, size_t aligned) {
    size_t pages = (bytes + 8191) / 4096;
    unsigned char* place = (unsigned char*)mmap(nullptr, (pages + 1) * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED || mprotect(place + pages * 4096, 4096, PROT_NONE)) fail("no memory");
    return place + (pages * 4096 - bytes) / aligned * aligned;
}

static void begin_thread() {
    work();
    self->done = true;
    _longjmp(scheduler, 1);
}

static void launch(unsigned blocks, unsigned threads, size_t bytes, void (*kernel)(), unsigned seed) {
    work = kernel, gridDim.x = blocks;
    chance.seed(seed);
    std::vector<Block> all(blocks);
    std::vector<std::unique_ptr<Thread>> everyone;
    for (unsigned b = 0; b < blocks; b++) {
        all[b].threads = threads, all[b].bytes = bytes, all[b].warps.resize(threads / 32);
        all[b].memory = guarded(bytes, 1024);
        std::memset(all[b].memory, 0xff, bytes);
        for (unsigned t = 0; t < threads; t++) {
            auto one = std::make_unique<Thread>();
            one->place = {t}, one->block_place = {b}, one->block = &all[b], one->warp = &all[b].warps[t / 32], one->lane = t % 32;
            one->stack.reset(new char[1 << 17]);
            getcontext(&one->start);
            one->start.uc_stack.ss_sp = one->stack.get(), one->start.uc_stack.ss_size = 1 << 17, one->start.uc_link = nullptr;
            makecontext(&one->start, begin_thread, 0);
            everyone.push_back(std::move(one));
        }
    }
    static size_t place, left;
    static bool moved, waiting;
    for (left = everyone.size(); left;) {
        std::shuffle(everyone.begin(), everyone.end(), chance);
        for (auto& block : all)
            for (auto& warp : block.warps)
                if (warp.held) warp.held--;
                else if (chance() % 64 == 0) warp.held = chance() % 128;
        moved = waiting = false;
        for (place = 0; place < everyone.size(); place++) {
            self = everyone[place].get();
            if (self->done || (self->watched && *self->watched < self->until)) continue;
            if (self->warp->held) {
                waiting = true;
                continue;
            }
            threadIdx = self->place, blockIdx = self->block_place, moved = true;
            if (!_setjmp(scheduler)) {
                if (self->begun) _longjmp(self->here, 1);
                self->begun = true;
                setcontext(&self->start);
            }
            if (self->done) left--;
        }
        if (left && !moved && !waiting) fail("threads wait for others that have gone another way");
    }
    for (auto& one : everyone)
        for (auto& group : one->groups)
            if (!group.empty()) fail("a copy that nobody has waited for");
}

}  // namespace machine

static inline void __syncwarp() { machine::meet(6, nullptr, 0); }
static inline void __threadfence_block() {}
static inline void __nanosleep(unsigned) {
    static const long nothing = 0;
    machine::wait_until(&nothing, 0);  // others go on
}
static inline void __syncthreads() {
    machine::Block& block = *machine::self->block;
    block.arrived++;
    machine::wait_until(&block.arrived, block.threads * ++machine::self->block_calls);
}
template <class T> static inline T __shfl_sync(unsigned, T x, int lane) {
    static_assert(sizeof(T) == 4);
    uint32_t word;
    std::memcpy(&word, &x, 4);
    word = machine::meet(7, &word, 1)[lane][0];
    std::memcpy(&x, &word, 4);
    return x;
}
template <class T> static inline T __shfl_xor_sync(unsigned all, T x, int other) { return __shfl_sync(all, x, machine::self->lane ^ other); }
static inline bool __any_sync(unsigned, bool x) {
    uint32_t word = x;
    auto all = machine::meet(8, &word, 1);
    bool found = false;
    for (int lane = 0; lane < 32; lane++) found |= all[lane][0] != 0;
    return found;
}
static inline int atomicAdd(int* place, int x) {
    int last = *place;
    *place += x;
    return last;
}
static inline float __uint_as_float(uint32_t bits) {
    float found;
    std::memcpy(&found, &bits, 4);
    return found;
}
static inline float __int_as_float(uint32_t bits) { return __uint_as_float(bits); }
static inline uint32_t __cvta_generic_to_shared(const void* place) {
    return machine::BASE + (uint32_t)((const unsigned char*)place - machine::self->block->memory);
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
