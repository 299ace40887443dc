// Forward recurrence, one cluster per (group, batch slice). Each block keeps the weights of its units in registers,
// has all of h in shared memory, and sends its new part of h to the other blocks with one bulk copy each.
// A warp owns four units: row r of its 16-row tile is gate r / 4 of unit r % 4, so one shuffle brings
// the four gates of a unit and column together in a lane.
#define DEPTH (PLACES / 16)
#define SHARE (SLOTS * COLUMNS)                        // elements of one block's part of h
#define TILE (PLACES * COLUMNS)

// This warp's fragments of one group's weights; a gate's start `apart` after those of the gate before.
DEVICE void load_weight(u32 (&weight)[DEPTH][4], const u16* group, i64 apart, u32 rank) {
  const int warp = threadIdx.x / 32, q = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
  for (int k = 0; k < DEPTH; k++)
#pragma unroll
    for (int r = 0; r < 4; r++) {
      int row = q + (r & 1) * 8, to = unit_in(rank * SLOTS + warp * 4 + row % 4);
      int from = unit_in(k * 16 + j * 2 + (r >> 1) * 8);
      weight[k][r] = from >= 0 && to >= 0 ? *(const u32*)(group + row / 4 * apart + (i64)to * D + from) : 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) forward_cluster(const __grid_constant__ ForwardArgs args) {
  extern __shared__ __align__(128) u16 shared[];       // h twice, then slack for reads past the last column
  __shared__ u64 arrived[2];
  const u32 rank = cluster_rank(), team = blockIdx.x / CLUSTER;
  const int group = team % (int)args.groups, first = team / (int)args.groups * COLUMNS;
  const int steps = args.steps, batch = args.batch, width = (int)args.groups * D;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, q = lane / 4, j = lane % 4, high = q / 4;

  u32 weight[1][DEPTH][4];
  load_weight(weight[0], args.weight + (i64)group * D * D, args.groups * D * D, rank);
  for (int e = threadIdx.x; e < 2 * TILE + 64; e += THREADS) shared[e] = 0;
  __syncthreads();
  for (int e = threadIdx.x; e < TILE; e += THREADS) {
    int place = e / (8 * COLUMNS) * 8 + e % 8, column = first + e / 8 % COLUMNS, unit = unit_in(place);
    if (args.h0 && unit >= 0 && column < batch) shared[e] = operand(args.h0[(i64)column * width + group * D + unit]);
  }
  counters_start(arrived, (CLUSTER - 1) * SHARE * 2);
  publish();
  cluster_barrier();

  // After the shuffle this lane finishes one unit in one column of each tile.
  const int slot = warp * 4 + q % 4, unit = unit_in(rank * SLOTS + slot);
  const i64 at_unit = group * D + unit;
  float c[TILES];
  Gates next[TILES];
  Real residual_next[TILES];
  int length[TILES], column[TILES];
  Four bias = {0, 0, 0, 0};
  if (unit >= 0) bias = bias_of(args, at_unit, width);
  auto place = [&](int s, int n) {                     // in an array (T, B, M)
    return ((i64)time_of(s, length[n], args.reverse) * batch + column[n]) * width + at_unit;
  };
  auto fetch = [&](int s, int n) {
    next[n] = load_gates(args.gates, place(s, n), at_unit, width);
    residual_next[n] = load_residual(args, place(s, n));
  };
#pragma unroll
  for (int n = 0; n < TILES; n++) {
    int inside = n * 8 + j * 2 + high;
    column[n] = first + inside;
    bool mine = inside < COLUMNS && column[n] < batch && unit >= 0;
    length[n] = mine ? length_of(args.lengths, column[n], steps) : -1;
    c[n] = mine ? given(args.c0, column[n] * (i64)width + at_unit, args.real_cells) : 0.f;
    residual_next[n] = 0;
    if (mine) fetch(0, n);
  }

  for (int s = 0; s < steps; s++) {
    const u16* h = shared + (s & 1) * TILE;
    u16* h_next = shared + ((s + 1) & 1) * TILE;
    Gates gates[TILES];
    Real residual[TILES];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      gates[n] = next[n];
      residual[n] = residual_next[n];
      if (length[n] >= 0 && s + 1 < steps) fetch(s + 1, n);
    }
    if (s > 0) {
      counter_wait(&arrived[s & 1], (s - 1) >> 1 & 1);
      if (threadIdx.x == 0) counter_expect(&arrived[s & 1], (CLUSTER - 1) * SHARE * 2);
    }
    float sums[1][TILES][4] = {};
    product<1, DEPTH, COLUMNS>(sums, weight, h);

    Real value[TILES];
    Activations saved[TILES];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      // A low lane holds gates i and g of columns 2j, 2j+1, a high lane f and o: swap, then each has one whole column.
      const float(&sum)[4] = sums[0][n];
      float got0 = __shfl_xor_sync(~0u, high ? sum[0] : sum[1], 16);
      float got1 = __shfl_xor_sync(~0u, high ? sum[2] : sum[3], 16);
      value[n] = 0;
      if (length[n] < 0) continue;
      if (s < length[n]) {
        Four z = with_residual(to_four(gates[n]), residual[n]);
        z.i += bias.i + (high ? got0 : sum[0]); z.f += bias.f + (high ? sum[1] : got0);
        z.g += bias.g + (high ? got1 : sum[2]); z.o += bias.o + (high ? sum[3] : got1);
        set(value[n], advance(z, c[n]));
        saved[n] = keep(z);
      }
      h_next[(slot / 8 * COLUMNS + n * 8 + j * 2 + high) * 8 + slot % 8 + rank * SHARE] = operand(value[n]);
    }
    if (s + 1 < steps) {
      publish();
      if (threadIdx.x < CLUSTER && threadIdx.x != rank)
        send(h_next + rank * SHARE, h_next + rank * SHARE, &arrived[(s + 1) & 1], SHARE * 2, threadIdx.x);
    }
    // Stores to global memory come last, while the copies are in flight.
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      if (length[n] < 0) continue;
      i64 to = place(s, n);
      args.out[to] = value[n];
      if (s >= length[n]) continue;
      if (s == length[n] - 1) args.hn[column[n] * (i64)width + at_unit] = value[n];
      if (args.activations) { args.activations[to] = saved[n]; args.cells[to] = keep_cell(c[n]); }
    }
  }
#pragma unroll
  for (int n = 0; n < TILES; n++)
    if (length[n] >= 0) {
      i64 at = column[n] * (i64)width + at_unit;
      leave_cell(args, at, c[n]);
      if (length[n] == 0) args.hn[at] = args.h0 ? args.h0[at] : Real(0);
    }
  cluster_barrier();                                   // no block exits while a copy from or to it is in flight
}
