// Shared by both grid kernels. BLOCKS blocks, all resident at once, serve one group; a block owns UNITS units.
// Blocks exchange 16-bit values through global memory, and the values are their own flags: the receiving buffer is filled
// with ones beforehand, no conversion ever yields that pattern (a NaN becomes 0x7fff), so a reader repeats its
// loads until every word is there. No barrier, no fence, no counter to reset.
// Each warp takes PARTS spans of 32 values of k for all rows of the block; the warps' sums meet in shared memory.
#define THREADS (WARPS * 32)
#define TILES (COLUMNS / 8)
#define ITEMS (UNITS * COLUMNS)
#define TURNS ((ITEMS + THREADS - 1) / THREADS)

// Whether any lane's piece still has a word of ones.
DEVICE bool absent(uint4 v) { return __any_sync(~0u, max(max(v.x, v.y), max(v.z, v.w)) == ~0u); }

// A warp's weights: HELD of its spans as fragments in registers, the rest as fragments in shared memory.
template <int HEIGHT>
struct Weights {
  u32 held[HEIGHT][HELD ? 2 * HELD : 1][4];
  uint4* kept;                                         // [span past HELD][half][row tile][thread]

  // element(row, k) gives two values: of row `row` of the block, at k and k + 1.
  template <class Element>
  DEVICE void load(uint4* place, Element element) {
    kept = place + threadIdx.x;
    const int warp = threadIdx.x / 32, q = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2 * PARTS; half++)
#pragma unroll
      for (int r = 0; r < HEIGHT; r++) {
        int row = r * 16 + q, k = (warp * PARTS + half / 2) * 32 + j * 8 + half % 2 * 4;
        uint4 f = make_uint4(element(row, k), element(row + 8, k), element(row, k + 2), element(row + 8, k + 2));
        if (half >= 2 * HELD) { kept[((half - 2 * HELD) * HEIGHT + r) * THREADS] = f; continue; }
        held[r][half][0] = f.x; held[r][half][1] = f.y; held[r][half][2] = f.z; held[r][half][3] = f.w;
      }
  }

  DEVICE void multiply(float (&sum)[4], int r, int half, u32 b0, u32 b1) const {
    if (half < 2 * HELD) { mma(sum, held[r][half], b0, b1); return; }
    uint4 f = kept[((half - 2 * HELD) * HEIGHT + r) * THREADS];
    mma(sum, {f.x, f.y, f.z, f.w}, b0, b1);
  }
};

// sum[r][n] += weights * the values of `width` k at row[n], for this warp's spans, CHUNK of them in flight at a time.
// A lane's 16 bytes are k = 8j .. 8j+7 of a span: two steps of the matrix product, in an order the weights share.
template <int HEIGHT>
DEVICE void gather_product(float (&sum)[HEIGHT][TILES][4], const Weights<HEIGHT>& weights, const u16* (&row)[TILES],
                           int width) {
  const int warp = threadIdx.x / 32, j = threadIdx.x % 4;
#pragma unroll
  for (int start = 0; start < PARTS; start += CHUNK) {
    uint4 v[CHUNK][TILES] = {};
    auto ask = [&](int i, int n) {
      int k = (warp * PARTS + start + i) * 32 + j * 8;
      if (start + i < PARTS && k < width && row[n]) v[i][n] = peek(row[n] + k);
    };
    if (start == 0)                                    // wait for one piece: polling all of them would fill the cache
      do ask(0, 0); while (absent(v[0][0]));
    u32 missing = start ? ~0u : ~1u;                   // one bit a piece, the same in all lanes
    do {
      u32 asked = missing;
      missing = 0;
#pragma unroll
      for (int i = 0; i < CHUNK; i++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
          if (asked >> (i * TILES + n) & 1) ask(i, n);
#pragma unroll
      for (int i = 0; i < CHUNK; i++)
#pragma unroll
        for (int n = 0; n < TILES; n++) missing |= (u32)absent(v[i][n]) << (i * TILES + n);
    } while (missing);
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
      if (start + i < PARTS)
#pragma unroll
        for (int r = 0; r < HEIGHT; r++)
#pragma unroll
          for (int n = 0; n < TILES; n++) {
            weights.multiply(sum[r][n], r, 2 * (start + i), v[i][n].x, v[i][n].y);
            weights.multiply(sum[r][n], r, 2 * (start + i) + 1, v[i][n].z, v[i][n].w);
          }
  }
}

// Leaves this warp's sums in shared memory as [warp][column][row]; PITCH floats a column: its rows and a pad that spreads the banks.
template <int HEIGHT, int PITCH>
DEVICE void leave(float* sums, const float (&sum)[HEIGHT][TILES][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, q = lane / 4, j = lane % 4;
  float* mine = sums + warp * COLUMNS * PITCH;
#pragma unroll
  for (int r = 0; r < HEIGHT; r++)
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) mine[(n * 8 + j * 2 + e % 2) * PITCH + r * 16 + q + e / 2 * 8] = sum[r][n][e];
}
