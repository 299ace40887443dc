// What CUDA C++ adds to C++, as far as the kernels use it.
#pragma once
#include "machine.h"

#define __device__
#define __forceinline__ inline
#define __global__ __attribute__((visibility("default")))
#define __launch_bounds__(...)
#define __grid_constant__
#define DEVICE inline

struct alignas(8) uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern "C" {
float fmaxf(float, float);
float fminf(float, float);
float fabsf(float);
float expf(float);
double sqrt(double);
}
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline u32 max(u32 a, u32 b) { return a > b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int __popc(u32 x) { return __builtin_popcount(x); }
inline u32 __float_as_uint(float x) { u32 y; __builtin_memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(u32 x) { float y; __builtin_memcpy(&y, &x, 4); return y; }
inline float __int_as_float(int x) { return __uint_as_float(x); }

// Whole warps and blocks.
struct Shuffle { const void* from; void* to; u32 lane; u32 bytes; };
void shuffle(u32 mask, Shuffle shuffle);
u32 __ballot_sync(u32 mask, int vote);
u32 __reduce_max_sync(u32 mask, u32 value);
int __syncthreads_or(int vote);
inline void __syncthreads() { machine::meet_block("__syncthreads"); }
inline int __any_sync(u32 mask, int vote) { return __ballot_sync(mask, vote) != 0; }
template <class Value> Value __shfl_xor_sync(u32 mask, Value x, int lanes) {
  Value y;
  shuffle(mask, {&x, &y, threadIdx.x % 32 ^ lanes, sizeof(Value)});
  return y;
}
template <class Value> Value __shfl_down_sync(u32 mask, Value x, u32 lanes) {
  Value y;
  u32 lane = threadIdx.x % 32;
  shuffle(mask, {&x, &y, lane + lanes < 32 ? lane + lanes : lane, sizeof(Value)});
  return y;
}

inline u64 atomicMax(u64* at, u64 value) { u64 before = *at; *at = before > value ? before : value; return before; }

template <class Argument> void call(void (*kernel)(Argument), const void* argument) { kernel(*(const Argument*)argument); }
