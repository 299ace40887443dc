// Forward recurrence over all blocks of the grid. Row 4u + gate of a block's weights is a gate of its unit u.
// Batches wider than COLUMNS are taken slice by slice within a step: the exchange of a slice overlaps the product of the next.
#define TALL (UNITS / 4)
#define BAND (4 * UNITS + 4)

extern "C" __global__ void __launch_bounds__(THREADS, 1) forward_grid(const __grid_constant__ ForwardArgs args) {
  extern __shared__ __align__(16) float shared[];
  float* cell = shared + 2 * WARPS * COLUMNS * BAND;   // [column][unit] of this block, the whole batch
  const int group = blockIdx.y, first_unit = blockIdx.x * UNITS;
  const int steps = args.steps, batch = args.batch, width = (int)args.groups * D;
  const int q = threadIdx.x % 32 / 4;

  Weights<TALL> weights;
  const u16* of_group = args.weight + (i64)group * D * D;
  weights.load((uint4*)(cell + (UNITS * batch + 3) / 4 * 4), [&](int row, int from) {
    int to = first_unit + row / 4;
    const u16* at = of_group + row % 4 * (width * D) + to * D + from;
    return to < D && from < D ? *(const u32*)at : 0u;
  });

  // The part of h this block owns goes into slot s of the exchange, two units to a word; padding units are zero.
  auto offer = [&](int s, int unit, int column, u16 value) {
    u32 other = __shfl_down_sync(~0u, (u32)value, 1);
    if (unit % 2 == 0 && unit < PADDED && column < batch)
      put((u32*)(args.exchange + (((i64)s * args.groups + group) * batch + column) * PADDED + unit), value | other << 16);
  };
  for (int item = threadIdx.x; item < (UNITS * batch + 31) / 32 * 32; item += THREADS) {
    int unit = first_unit + item % UNITS, column = item / UNITS;
    bool real = unit < D && column < batch;
    i64 at = column * (i64)width + group * D + unit;
    if (column < batch) cell[item] = real ? given(args.c0, at, args.real_cells) : 0.f;
    u16 h = real && args.h0 ? narrow(to_float(args.h0[at])) : 0;  // a NaN with all bits set would count as missing
    offer(0, unit, column, h);
  }

  int parity = 0;
  for (int s = 0; s < steps; s++)
    for (int first = 0; first < batch; first += COLUMNS, parity ^= 1) {
      Gates gates[TURNS];
      Real residual[TURNS];
      i64 at[TURNS];
      int length[TURNS];
#pragma unroll
      for (int i = 0; i < TURNS; i++) {                // loaded early: they arrive while the product runs
        int item = threadIdx.x + i * THREADS, unit = first_unit + item % UNITS, column = first + item / UNITS;
        length[i] = -1;
        if (item >= ITEMS || unit >= D || column >= batch) continue;
        length[i] = length_of(args.lengths, column, steps);
        at[i] = ((i64)time_of(s, length[i], args.reverse) * batch + column) * width + group * D + unit;
        gates[i] = load_gates(args.gates, at[i], group * D + unit, width);
        residual[i] = load_residual(args, at[i]);
      }
      const u16* row[TILES];
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        int column = first + n * 8 + q;
        row[n] = column < batch ? args.exchange + (((i64)s * args.groups + group) * batch + column) * PADDED : 0;
      }
      float sum[TALL][TILES][4] = {};
      gather_product<TALL>(sum, weights, row, PADDED);
      float* sums = shared + parity * WARPS * COLUMNS * BAND;
      leave<TALL, BAND>(sums, sum);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < TURNS; i++) {
        int item = threadIdx.x + i * THREADS, local = item % UNITS, unit = first_unit + local, column = first + item / UNITS;
        Real value = 0;
        if (length[i] >= 0) {
          if (s < length[i]) {
            Four z = with_residual(to_four(gates[i]), residual[i]);
            if (args.bias) {
              const Four bias = bias_of(args, group * D + unit, width);
              z.i += bias.i; z.f += bias.f; z.g += bias.g; z.o += bias.o;
            }
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
              float4 part = *(const float4*)(sums + (w * COLUMNS + item / UNITS) * BAND + local * 4);
              z.i += part.x; z.f += part.y; z.g += part.z; z.o += part.w;
            }
            float c = cell[column * UNITS + local];
            set(value, advance(z, c));
            cell[column * UNITS + local] = c;
            if (s == length[i] - 1) args.hn[column * (i64)width + group * D + unit] = value;
            if (args.activations) {
              args.activations[at[i]] = keep(z);
              args.cells[at[i]] = keep_cell(c);
            }
          }
          args.out[at[i]] = value;
        }
        if (s + 1 < steps) offer(s + 1, unit, item < ITEMS ? column : batch, operand(value));
      }
    }
  __syncthreads();
  for (int item = threadIdx.x; item < UNITS * batch; item += THREADS) {
    int unit = first_unit + item % UNITS, column = item / UNITS;
    if (unit >= D) continue;
    i64 at = column * (i64)width + group * D + unit;
    leave_cell(args, at, cell[item]);
    if (length_of(args.lengths, column, steps) == 0) args.hn[at] = args.h0 ? args.h0[at] : Real(0);
  }
}
