// What both cluster kernels share: a cluster of CLUSTER blocks serves one group and one slice of the batch.
// Block `rank` owns UNITS consecutive units of the group, held in SLOTS places (a multiple of 8, the rest zero),
// so a group has CLUSTER * SLOTS places in all and each block's share of any buffer is contiguous.
// Tiles in shared memory are stacks of 8 x 8 matrices, [place / 8][column][place % 8]: what ldmatrix, stmatrix and
// wgmma all take, free of bank conflicts.
#define WARPS (SLOTS / 4)
#define THREADS (WARPS * 32)
#define TILES ((COLUMNS + 7) / 8)                      // 8-column tiles of the slice
#define PLACES (CLUSTER * SLOTS)

// Unit of the group in a place, or -1 where the place is padding.
DEVICE int unit_in(int place) {
  int unit = place / SLOTS * UNITS + place % SLOTS;
  return place % SLOTS < UNITS && unit < D ? unit : -1;
}

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
DEVICE void counter_expect(u64* counter, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(smem_address(counter)), "r"(bytes) : "memory");
}
// Both counters ready for their first `bytes`. Every block of the cluster must see this before anyone sends.
DEVICE void counters_start(u64 (&counter)[2], u32 bytes) {
  if (threadIdx.x > 0) return;
  counter_init(&counter[0]); counter_init(&counter[1]);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  counter_expect(&counter[0], bytes); counter_expect(&counter[1], bytes);
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
DEVICE void publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}

// d += A (HEIGHT tiles of 16 rows of this warp, fragments in registers) * B (16 STEPS deep, a tile in shared memory).
// ROWS is the tile's number of stored columns; columns past COLUMNS are computed from whatever lies there and never used.
#if WGMMA
#define SUMS(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define FRAGMENT "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
#define INSTRUCTION(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ELEMENT "." ELEMENT
DEVICE void multiply_add(float (&d)[TILES][4], const u32 (&a)[4], u64 b) {
#if COLUMNS <= 8
  asm volatile(INSTRUCTION(8) " {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;" : SUMS(0) : FRAGMENT);
#elif COLUMNS <= 16
  asm volatile(INSTRUCTION(16) " {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, 1, 1, 1, 0;"
               : SUMS(0), SUMS(1) : FRAGMENT);
#elif COLUMNS <= 24
  asm volatile(INSTRUCTION(24) " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, %16, 1, 1, 1, 0;"
               : SUMS(0), SUMS(1), SUMS(2) : FRAGMENT);
#else
  asm volatile(INSTRUCTION(32) " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, "
               "%20, 1, 1, 1, 0;"
               : SUMS(0), SUMS(1), SUMS(2), SUMS(3) : FRAGMENT);
#endif
}

template <int HEIGHT, int STEPS, int ROWS>
DEVICE void product(float (&d)[HEIGHT][TILES][4], const u32 (&a)[HEIGHT][STEPS][4], const u16* tile) {
  // Matrix descriptor without swizzle: bytes from one 8 x 8 matrix to the next along k, then along the columns.
  const u64 strides = (u64)ROWS << 16 | (u64)8 << 32;
  u32 base = smem_address(tile) >> 4;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < STEPS; k++)
#pragma unroll
    for (int m = 0; m < HEIGHT; m++) multiply_add(d[m], a[m][k], strides | (u64)((base + k * 2 * ROWS) & 0x3fff));
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int m = 0; m < HEIGHT; m++)
#pragma unroll
    for (int n = 0; n < TILES; n++)                    // the sums exist only from here on
      asm volatile("" : "+f"(d[m][n][0]), "+f"(d[m][n][1]), "+f"(d[m][n][2]), "+f"(d[m][n][3]) :: "memory");
}
#else
template <int HEIGHT, int STEPS, int ROWS>
DEVICE void product(float (&d)[HEIGHT][TILES][4], const u32 (&a)[HEIGHT][STEPS][4], const u16* tile) {
  // A product waits some 30 clocks for the one before it in the same sum: narrow tiles keep several sums going.
  constexpr int CHAINS = HEIGHT * TILES >= 4 ? 1 : HEIGHT * TILES >= 2 ? 2 : 4;
  float sum[CHAINS][HEIGHT][TILES][4] = {};
  const u32 lane = threadIdx.x % 32;
  const u32 base = smem_address(tile) + (lane % 8) * 16 + (lane / 8) * ROWS * 16;
#pragma unroll
  for (int k = 0; k < STEPS; k += 2)
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      u32 b[4];
      if (k + 1 < STEPS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(base + k * 2 * ROWS * 16 + n * 128) : "memory");
      else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                     : "=r"(b[0]), "=r"(b[1])
                     : "r"(base - lane / 16 * 2 * ROWS * 16 + k * 2 * ROWS * 16 + n * 128) : "memory");
#pragma unroll
      for (int half = 0; half < 2; half++)
        if (k + half < STEPS)
#pragma unroll
          for (int m = 0; m < HEIGHT; m++) mma(sum[(k + half) % CHAINS][m][n], a[m][k + half], b[2 * half], b[2 * half + 1]);
    }
#pragma unroll
  for (int m = 0; m < HEIGHT; m++)
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float total = sum[0][m][n][e];
#pragma unroll
        for (int chain = 1; chain < CHAINS; chain++) total += sum[chain][m][n][e];
        d[m][n][e] = total;
      }
}
#endif
