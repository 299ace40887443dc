// Shared by both cluster kernels. A cluster of CLUSTER blocks serves one group and one slice of the batch.
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

// Makes both counters expect their first `bytes`. Every block of the cluster must see this before any block sends.
DEVICE void counters_start(u64 (&counter)[2], u32 bytes) {
  if (threadIdx.x > 0) return;
  counter_init(&counter[0]); counter_init(&counter[1]);
  counters_fence();
  counter_expect(&counter[0], bytes); counter_expect(&counter[1], bytes);
}
// Lets the copy engine and the tensor cores read what every thread stored to shared memory.
DEVICE void publish() {
  shared_fence();
  __syncthreads();
}

// d += A (HEIGHT tiles of 16 rows of this warp, fragments in registers) * B (16 STEPS deep, a tile in shared memory).
// ROWS is the tile's number of stored columns; columns past COLUMNS hold undefined values and are never used.
#if WGMMA
template <int HEIGHT, int STEPS, int ROWS>
DEVICE void product(float (&d)[HEIGHT][TILES][4], const u32 (&a)[HEIGHT][STEPS][4], const u16* tile) {
  // Matrix descriptor without swizzle: bytes from one 8 x 8 matrix to the next along k, then along the columns.
  const u64 strides = (u64)ROWS << 16 | (u64)8 << 32;
  u32 base = smem_address(tile) >> 4;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < STEPS; k++)
#pragma unroll
    for (int m = 0; m < HEIGHT; m++) wgmma(d[m], a[m][k], strides | (u64)((base + k * 2 * ROWS) & 0x3fff));
  wgmma_wait();
#pragma unroll
  for (int m = 0; m < HEIGHT; m++)
#pragma unroll
    for (int n = 0; n < TILES; n++) settled(d[m][n]);  // the sums are complete only from here on
}
#else
template <int HEIGHT, int STEPS, int ROWS>
DEVICE void product(float (&d)[HEIGHT][TILES][4], const u32 (&a)[HEIGHT][STEPS][4], const u16* tile) {
  // A product waits about 30 cycles for the previous one of the same sum, so narrow tiles have several sums.
  constexpr int CHAINS = HEIGHT * TILES >= 4 ? 1 : HEIGHT * TILES >= 2 ? 2 : 4;
  float sum[CHAINS][HEIGHT][TILES][4] = {};
  const u32 lane = threadIdx.x % 32;
  const u32 base = smem_address(tile) + (lane % 8) * 16 + (lane / 8) * ROWS * 16;
#pragma unroll
  for (int k = 0; k < STEPS; k += 2)
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      u32 b[4];
      if (k + 1 < STEPS) load_matrices4(b, base + k * 2 * ROWS * 16 + n * 128);
      else load_matrices2(b, base - lane / 16 * 2 * ROWS * 16 + k * 2 * ROWS * 16 + n * 128);
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
