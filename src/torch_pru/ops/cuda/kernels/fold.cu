// The levels of a pyramid into the one matrix W' of its input (fold), and gradients of W' back (unfold).
// W' has a row for each gate of each unit, the gates of a unit side by side; a level has a matrix for each gate.
// Level 0 is copied; below it, each value is a sum over a few neighbours: the band of the pooling matrix. Sums are
// float32. Eight columns of W' are one access of 16 bytes; STEP values of a level's row are one access.
typedef Number<FLOAT_WEIGHTS> Weight;

struct FoldArgs {
  Weight* weights[LEVELS];        // (GATES, units, features / 2^level)
  const int* first[LEVELS];       // (columns) for fold, (features / 2^level) for unfold; null at level 0
  const float* share[LEVELS];     // (width, as many)
  u16* folded;                    // (all units * GATES, columns)
  i64 units[LEVELS], widths[LEVELS];
  i64 features, columns;          // columns: features rounded up to a multiple of 8
};

// Eight values of a row from column n on; zero past its end, which STEP divides.
DEVICE void read8(const Weight* row, int n, int features, float (&y)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += STEP) {
    Pack<Weight, STEP> pack = {};
    if (n + i < features) pack = load<STEP>(row + n + i);
#pragma unroll
    for (int j = 0; j < STEP; j++) y[i + j] = to_float(pack.at[j]);
  }
}

DEVICE void write8(Weight* row, int n, int features, const float (&y)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += STEP) {
    Pack<Weight, STEP> pack;
#pragma unroll
    for (int j = 0; j < STEP; j++) set(pack.at[j], y[i + j]);
    if (n + i < features) store<STEP>(row + n + i, pack);
  }
}

// Eight columns of W' from a row of a pooled level; first and share point to the first of them.
DEVICE void combine8(
    const Weight* row, const int* first, const float* share, int width, int columns, float (&y)[8]) {
  Pack<int, 8> at = load<8>(first);
  for (int i = 0; i < 8; i++) y[i] = 0.f;
#pragma unroll 1                                     // fewer registers, more threads
  for (int j = 0; j < width; j++, share += columns) {
    Pack<float, 8> s = load<8>(share);
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] += s.at[i] * to_float(row[at.at[i] + j]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) fold(FoldArgs a) {
  u32 packs = a.columns / 8, me = blockIdx.x * THREADS + threadIdx.x, all = gridDim.x * THREADS;
  uint4* to = (uint4*)a.folded;
#pragma unroll
  for (int level = 0; level < LEVELS; level++) {
    u32 units = a.units[level], features = a.features >> level, count = units * GATES * packs;
    for (u32 p = me; p < count; p += all) {
      u32 row = p / packs, n = p % packs * 8, unit = row / GATES, gate = row % GATES;
      const Weight* from = a.weights[level] + (i64)(gate * units + unit) * features;
      float y[8];
      if (level == 0) read8(from, n, features, y);
      else combine8(from, a.first[level] + n, a.share[level] + n, a.widths[level], a.columns, y);
      to[p] = make_uint4(narrow2(y[0], y[1]), narrow2(y[2], y[3]), narrow2(y[4], y[5]), narrow2(y[6], y[7]));
    }
    to += count;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) unfold(FoldArgs a) {
  u32 packs = a.columns / 8, me = blockIdx.x * THREADS + threadIdx.x, all = gridDim.x * THREADS;
  const u16* from = a.folded;
#pragma unroll
  for (int level = 0; level < LEVELS; level++) {
    u32 units = a.units[level], features = a.features >> level, steps = level == 0 ? packs : features;
    for (u32 p = me; p < units * GATES * steps; p += all) {
      u32 row = p / steps, n = p % steps, gate = row / units, unit = row % units;
      const u16* line = from + (i64)(unit * GATES + gate) * a.columns;
      if (level == 0) {
        Pack<u16, 8> pack = load<8>(line + 8 * n);
        float y[8];
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = widen(pack.at[i]);
        write8(a.weights[level] + (i64)row * features, 8 * n, features, y);
      } else {                                       // features / 2^level: too odd for wide accesses, but few
        const float* share = a.share[level] + n;
        line += a.first[level][n];
        float y = 0.f;
        for (int j = 0; j < a.widths[level]; j++) y += share[(i64)j * features] * widen(line[j]);
        set(a.weights[level][p], y);
      }
    }
    from += (i64)units * GATES * a.columns;
  }
}
