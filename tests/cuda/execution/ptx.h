// The functions of kernels/ptx.cu in C++.
#pragma once
#include "cuda.h"

inline float widen_brain(u16 x) { return __uint_as_float((u32)x << 16); }
float widen_half(u16 x);
u16 half_of(float x);
u16 brain_of(float x);
inline u32 narrow2_half(float low, float high) { return half_of(low) | (u32)half_of(high) << 16; }
#if BF16
inline float widen(u16 x) { return widen_brain(x); }
inline u16 narrow(float x) { return brain_of(x); }
#else
inline float widen(u16 x) { return widen_half(x); }
inline u16 narrow(float x) { return half_of(x); }
#endif
inline u32 narrow2(float low, float high) { return narrow(low) | (u32)narrow(high) << 16; }

float tanh_approximate(float x);
float exp2_fast(float x);
float log2_fast(float x);

inline u32 smem_address(const void* p) { return machine::address_of(p); }
void copy16(u32 address, const void* from);
void copies_wait();
void load_matrices4(u32 (&m)[4], u32 address);
void load_matrices2(u32 (&m)[4], u32 address);
void store_matrices2_transposed(u32 address, u32 first, u32 second);

void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, bool brain);
inline void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma(d, a, b0, b1, BF16); }
void wgmma(float* d, u32 tiles, const u32 (&a)[4], u64 b, bool brain);
template <int TILES_OF_8> void wgmma(float (&d)[TILES_OF_8][4], const u32 (&a)[4], u64 b) { wgmma(d[0], TILES_OF_8, a, b, BF16); }
void wgmma_fence();
void wgmma_wait();
inline void settled(float (&)[4]) {}

inline u32 cluster_rank() { return machine::rank(); }
inline void cluster_barrier() { machine::meet_cluster("cluster_barrier"); }
void counter_init(u64* counter);
inline void counters_fence() {}
void counter_expect(u64* counter, u32 bytes);
void counter_wait(u64* counter, u32 parity);
void send(const void* from, const void* to, u64* counter, u32 bytes, u32 rank);
inline void shared_fence() {}

uint4 peek(const void* p);
void put(u32* p, u32 x);
void put2(uint2* p, uint2 x);
