// A layer's single step without gradients: input transform, residual, recurrence. A warp computes one unit. The unit's
// weights are multiplied with the input pooled down to its level, which the block computes in shared memory, in float32.
struct LayerStepArgs {
  const Real* x;                   // (B, N)
  const Real* levels[LEVELS];      // (4, units, features / 2^level)
  const int* first[LEVELS];        // (features / 2^level): where the inputs of a pooled feature start; null at level 0
  const float* share[LEVELS];      // (width, features / 2^level): the factor of each of them
  const Real* context;             // (4, G, D, D)
  const void* bias;                // as in ForwardArgs
  const void* other_bias;
  const Real* h0;
  const void* c0;
  Real* out;                       // (B, M)
  Real* hn;                        // (B, M)
  void* cn;                        // (B, M), of the kind of c0
  i64 units[LEVELS], widths[LEVELS];
  i64 features, groups, real_bias, real_cells;
};

// Pooled feature n of a level.
DEVICE float pooled(const LayerStepArgs& args, int level, const Real* x, int features, int n) {
  if (level == 0) return to_float(x[n]);
  const Real* inputs = x + args.first[level][n];
  const float* share = args.share[level] + n;
  float sum = 0.f;
  for (int j = 0; j < (int)args.widths[level]; j++) sum += share[(i64)j * features] * to_float(inputs[j]);
  return sum;
}

// Adds the input's part of one unit's gates. `view` is the pooled input, followed by a zero.
DEVICE void add_input(float (&sums)[4], const Real* row, i64 apart, int features, const float* view) {
  auto vector_at = [&](int k) { return Pair{view[2 * k], view[2 * k + 1]}; };
  auto in_pairs = [](const Real* of_gate, int k) { return pair_at(of_gate, k); };
  auto one_by_one = [&](const Real* of_gate, int k) {  // rows of an odd length do not all start at a pair
    return Pair{to_float(of_gate[2 * k]), 2 * k + 1 < features ? to_float(of_gate[2 * k + 1]) : 0.f};
  };
  if (features % 2) add_products(sums, row, apart, (features + 1) / 2, one_by_one, vector_at);
  else add_products(sums, row, apart, features / 2, in_pairs, vector_at);
}

extern "C" __global__ void __launch_bounds__(THREADS) layer_step(const __grid_constant__ LayerStepArgs args) {
  extern __shared__ __align__(16) float view[];        // the input pooled down to one level, followed by a zero
  const int width = (int)args.groups * D, first_unit = blockIdx.x * (THREADS / 32), unit = first_unit + threadIdx.x / 32;
  const bool mine = unit < width;                      // the same for a whole warp
  const i64 at = (i64)blockIdx.y * width + unit;
  const Real* x = args.x + (i64)blockIdx.y * args.features;
  const float c = mine ? given(args.c0, at, args.real_cells) : 0.f;
  Four z = {};
  if (mine && args.bias) z = bias_of(args, unit, width);
#if RESIDUAL
  if (mine) {
    const float own = to_float(x[unit]);               // N = M
    z.i += own; z.f += own; z.g += own; z.o += own;
  }
#endif
  float sums[4] = {};
  if (mine) add_context(sums, args.context, args.h0, unit, width);
  int before = 0;                                      // units of the levels above
#pragma unroll
  for (int level = 0; level < LEVELS; level++) {
    const int units = (int)args.units[level], features = (int)args.features >> level, inside = unit - before;
    if (first_unit < before + units && first_unit + THREADS / 32 > before) {  // the same for a whole block
      __syncthreads();                                 // the view of the level above has been read
      for (int n = threadIdx.x; n <= features; n += THREADS)
        view[n] = n < features ? pooled(args, level, x, features, n) : 0.f;
      __syncthreads();
      if (mine && inside >= 0 && inside < units)
        add_input(sums, args.levels[level] + (i64)inside * features, (i64)units * features, features, view);
    }
    before += units;
  }
  if (!mine) return;
  add_lanes(z, sums);
  if (threadIdx.x % 32 == 0) finish(args, at, z, c);
}
