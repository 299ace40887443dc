// The instructions that CUDA C++ has no function for: all inline assembly is here. tests/cuda/execution/ptx.h has the same
// functions in C++, with which the kernels run on a CPU.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE __device__ __forceinline__

// ---- conversions, rounded to the nearest; NaN becomes 0x7fff

// Operand elements are float16 or bfloat16, held as raw 16-bit words.
#if BF16
#define ELEMENT "bf16"
DEVICE float widen(u16 x) { return __uint_as_float((u32)x << 16); }
#else
#define ELEMENT "f16"
DEVICE float widen(u16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
#endif
DEVICE u16 narrow(float x) { u16 y; asm("cvt.rn." ELEMENT ".f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
DEVICE u32 narrow2(float low, float high) {
  u32 y; asm("cvt.rn." ELEMENT "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y;
}

DEVICE float widen_half(u16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
DEVICE u16 half_of(float x) { u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
DEVICE u32 narrow2_half(float low, float high) {
  u32 y; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y;
}

// ---- elementary functions

DEVICE float tanh_approximate(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float exp2_fast(float x) { float y; asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float log2_fast(float x) { float y; asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// ---- shared memory

DEVICE u32 smem_address(const void* p) {
  u32 a; asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(a) : "l"(p)); return a;
}

// 16 bytes from global to shared memory, there after this thread's `copies_wait`.
DEVICE void copy16(u32 address, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from) : "memory");
}
DEVICE void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// 8 x 8 matrices from shared memory; a lane gives the address of one of their rows.
DEVICE void load_matrices4(u32 (&m)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
}
DEVICE void load_matrices2(u32 (&m)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(m[0]), "=r"(m[1]) : "r"(address) : "memory");
}
DEVICE void store_matrices2_transposed(u32 address, u32 first, u32 second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" :: "r"(address), "r"(first), "r"(second) : "memory");
}

// ---- products of matrices

// d += a * b of one warp: 16 x 8 sums, 16 deep.
DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT "." ELEMENT ".f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of four warps and 64 rows, for 8 columns and more; b describes a tile in shared memory. The sums exist after
// `wgmma_wait`, and `settled` keeps the compiler from reading them before.
#define SUMS(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define FRAGMENT "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
#define INSTRUCTION(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ELEMENT "." ELEMENT
DEVICE void wgmma(float (&d)[1][4], const u32 (&a)[4], u64 b) {
  asm volatile(INSTRUCTION(8) " {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;" : SUMS(0) : FRAGMENT);
}
DEVICE void wgmma(float (&d)[2][4], const u32 (&a)[4], u64 b) {
  asm volatile(INSTRUCTION(16) " {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, 1, 1, 1, 0;"
               : SUMS(0), SUMS(1) : FRAGMENT);
}
DEVICE void wgmma(float (&d)[3][4], const u32 (&a)[4], u64 b) {
  asm volatile(INSTRUCTION(24) " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, %16, 1, 1, 1, 0;"
               : SUMS(0), SUMS(1), SUMS(2) : FRAGMENT);
}
DEVICE void wgmma(float (&d)[4][4], const u32 (&a)[4], u64 b) {
  asm volatile(INSTRUCTION(32) " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, "
               "%20, 1, 1, 1, 0;"
               : SUMS(0), SUMS(1), SUMS(2), SUMS(3) : FRAGMENT);
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_wait() {
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}
DEVICE void settled(float (&d)[4]) { asm volatile("" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) :: "memory"); }

// ---- clusters of blocks

DEVICE u32 cluster_rank() { u32 r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
DEVICE u32 in_block(u32 address, u32 rank) {
  u32 a; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(address), "r"(rank)); return a;
}

// An arrival counter in shared memory that also counts bytes copied in by other blocks.
DEVICE void counter_init(u64* counter) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(smem_address(counter)) : "memory");
}
DEVICE void counters_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void counter_expect(u64* counter, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(smem_address(counter)), "r"(bytes) : "memory");
}
DEVICE void counter_wait(u64* counter, u32 parity) {
  asm volatile("{\n.reg .pred done;\nagain:\n"
               "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;\n}" :: "r"(smem_address(counter)), "r"(parity) : "memory");
}

// Copies `bytes` from here to the same kind of place in another block; its counter learns of their arrival.
DEVICE void send(const void* from, const void* to, u64* counter, u32 bytes, u32 rank) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(in_block(smem_address(to), rank)), "r"(smem_address(from)), "r"(bytes),
                  "r"(in_block(smem_address(counter), rank)) : "memory");
}
// Ordinary stores to shared memory, then the copy engine or the tensor cores: they need this in between.
DEVICE void shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- global memory that other blocks read and write meanwhile

DEVICE uint4 peek(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
DEVICE void put(u32* p, u32 x) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(x) : "memory"); }
DEVICE void put2(uint2* p, uint2 x) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" :: "l"(p), "r"(x.x), "r"(x.y) : "memory");
}
