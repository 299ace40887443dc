// Backward recurrence over all blocks of the grid. A block computes the gradient of its own units' h from the gradients of
// all gates one step later; those are read from the result itself, `dgates` in 16 bits, filled with ones beforehand.
#define TALL ((UNITS + 15) / 16)
#define BAND (TALL * 16 + 1)

extern "C" __global__ void __launch_bounds__(THREADS, 1) backward_grid(const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(16) float shared[];
  const int group = blockIdx.y, first_unit = blockIdx.x * UNITS;
  const int steps = args.steps, batch = args.batch, width = (int)args.groups * D;
  float* dcell = shared + 2 * WARPS * COLUMNS * BAND;  // [column][unit] of this block, the whole batch
  const int q = threadIdx.x % 32 / 4;
  const Scale scale = scale_of(args);

  Weights<TALL> weights;                               // k is unit * 4 + gate, as the gradients of the gates lie
  const u16* of_group = args.weight + (i64)group * D * D;
  const int apart = width * D;                         // from a gate's weights to the next gate's
  weights.load((uint4*)(dcell + (UNITS * batch + 3) / 4 * 4), [&](int local, int k) {
    int to = first_unit + local, from = k / 4;
    const u16* at = of_group + k % 4 * apart + from * D + to;
    return local < UNITS && to < D && from < D ? at[0] | (u32)at[apart] << 16 : 0u;
  });
  for (int item = threadIdx.x; item < UNITS * batch; item += THREADS) {
    int unit = first_unit + item % UNITS;
    bool given = args.grad_cn && unit < D;
    dcell[item] = given ? scale.up * args.grad_cn[item / UNITS * (i64)width + group * D + unit] : 0.f;
  }
  __syncthreads();

  // Sums over all gates at processing step s of one slice, left in `sums`.
  auto multiply = [&](int s, int first, float* sums) {
    const u16* row[TILES];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      int column = first + n * 8 + q;
      row[n] = 0;
      if (column < batch) {
        int t = time_of(s, length_of(args.lengths, column, steps), args.reverse);
        row[n] = (const u16*)(args.dgates + ((i64)t * batch + column) * width + group * D);
      }
    }
    float sum[TALL][TILES][4] = {};
    gather_product<TALL>(sum, weights, row, 4 * D);
    leave<TALL, BAND>(sums, sum);
  };
  auto collect = [&](const float* sums, int item) {
    float dh = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) dh += sums[(w * COLUMNS + item / UNITS) * BAND + item % UNITS];
    return dh;
  };

  float4 dbias[TURNS] = {};
  int parity = 0;
  for (int s = steps - 1; s >= 0; s--)
    for (int first = 0; first < batch; first += COLUMNS, parity ^= 1) {
      Activations saved[TURNS];
      Cell c[TURNS], c_before[TURNS];
      Real grad[TURNS];                                // all are converted where they are used: here, that would wait for the load
      i64 at[TURNS];
      int length[TURNS];
#pragma unroll
      for (int i = 0; i < TURNS; i++) {                // loaded early: they arrive while the product runs
        int item = threadIdx.x + i * THREADS, unit = first_unit + item % UNITS, column = first + item / UNITS;
        length[i] = -1;
        if (item >= ITEMS || unit >= D || column >= batch) continue;
        length[i] = length_of(args.lengths, column, steps);
        i64 at_unit = group * D + unit;
        at[i] = ((i64)time_of(s, length[i], args.reverse) * batch + column) * width + at_unit;
        if (s >= length[i]) continue;
        saved[i] = args.activations[at[i]];
        c[i] = args.cells[at[i]];
        grad[i] = args.grad_out ? args.grad_out[at[i]] : Real(0);
        if (s) c_before[i] = args.cells[((i64)time_of(s - 1, length[i], args.reverse) * batch + column) * width + at_unit];
      }
      float* sums = shared + parity * WARPS * COLUMNS * BAND;
      if (s + 1 < steps) multiply(s + 1, first, sums);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < TURNS; i++) {
        if (length[i] < 0) continue;
        int item = threadIdx.x + i * THREADS, column = first + item / UNITS;
        Gates d = {};
        if (s < length[i]) {
          i64 state = column * (i64)width + group * D + first_unit + item % UNITS;
          float dh = scale.up * to_float(grad[i]);
          float before = s ? recall_cell(c_before[i]) : args.c0 ? args.c0[state] : 0.f;
          if (s + 1 < length[i]) dh += collect(sums, item);
          else if (args.grad_hn) dh += scale.up * to_float(args.grad_hn[state]);
          Four exact = retreat(recall(saved[i]), recall_cell(c[i]), before, dh, dcell[column * UNITS + item % UNITS]);
          dbias[i].x += exact.i; dbias[i].y += exact.f; dbias[i].z += exact.g; dbias[i].w += exact.o;
          d = to_gates(exact);
        }
        put2(args.dgates + at[i], operands(d));
        store_gates32(args, at[i], group * D + first_unit + item % UNITS, width, d, scale);
        store_residual(args, at[i], d, scale);
      }
    }
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    int item = threadIdx.x + i * THREADS, unit = first_unit + item % UNITS;
    if (item < ITEMS && unit < D) args.dbias[item / UNITS * (i64)width + group * D + unit] = times(dbias[i], scale.down);
  }
  for (int first = 0; first < batch; first += COLUMNS, parity ^= 1) {
    float* sums = shared + parity * WARPS * COLUMNS * BAND;
    multiply(0, first, sums);
    __syncthreads();
    for (int item = threadIdx.x; item < ITEMS; item += THREADS) {
      int unit = first_unit + item % UNITS, column = first + item / UNITS;
      if (unit >= D || column >= batch) continue;
      i64 to = column * (i64)width + group * D + unit;
      bool idle = length_of(args.lengths, column, steps) == 0;
      args.dh0[to] = idle ? (args.grad_hn ? to_float(args.grad_hn[to]) : 0.f) : collect(sums, item) * scale.down;
      args.dc0[to] = dcell[column * UNITS + item % UNITS] * scale.down;
    }
  }
}
