// What the kernels for Hopper GPUs have in common: it stands in front of each source.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define NOTHING __int_as_float(0xff800000)  // minus infinity

__device__ __forceinline__ u32 address(const void* place) { return (u32)__cvta_generic_to_shared(place); }

// Two numbers in bfloat16.
__device__ __forceinline__ u32 rounded(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ __forceinline__ float low(u32 both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high(u32 both) { return __uint_as_float(both & 0xffff0000u); }

// Of two.
__device__ __forceinline__ float power(float x) {
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
}

