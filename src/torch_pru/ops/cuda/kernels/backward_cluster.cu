// Backward recurrence, one cluster per (group, batch slice). Each block turns the gradients of its own gates into partial
// gradients of every unit's h and sends each owner its part; an owner adds the parts in the order of their senders,
// so results do not depend on the order of arrival.
#define DEPTH (4 * SLOTS / 16)
#define PASSES (CLUSTER / 4)                           // 16-row tiles a warp multiplies
#define ROWS (COLUMNS | 1)                             // an odd number of stored columns spreads the banks
#define SHARE (SLOTS * ROWS)
#define TILE (PLACES * ROWS)

// First row of this warp's tile in one pass: four neighbouring warps make 64 rows, as wgmma wants them.
DEVICE int first_row(int warp, int pass) {
  return 16 * (WARPS % 4 ? pass * WARPS + warp : (warp / 4 * PASSES + pass) * 4 + warp % 4);
}

// This warp's fragments of one group's weights, transposed: k is place * 4 + gate of this block, a row any unit.
// A gate's start `apart` after those of the gate before.
DEVICE void load_weight(u32 (&weight)[PASSES][DEPTH][4], const u16* group, int apart, u32 rank) {
  const int warp = threadIdx.x / 32, q = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
  for (int p = 0; p < PASSES; p++)
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        int depth = k * 16 + j * 2 + (r >> 1) * 8, from = unit_in(rank * SLOTS + depth / 4);
        int to = unit_in(first_row(warp, p) + q + (r & 1) * 8);
        const u16* at = group + (i64)depth % 4 * apart + from * D + to;
        weight[p][k][r] = from >= 0 && to >= 0 ? at[0] | (u32)at[apart] << 16 : 0;
      }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) backward_cluster(const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(128) u16 shared[];
  u16* received = shared;                              // [2][sender][its part], see cluster.cu for the order inside
  u16* partial = received + 2 * TILE;                  // [2][owner][its part]; this block's own is not sent
  u16* own = partial + 2 * TILE;                       // gradients of this block's gates: 4 * SLOTS deep
  u16* spare = own + 4 * SLOTS * ROWS;                 // slack past the last column; takes stores of unused columns
  __shared__ u64 arrived[2];
  const u32 rank = cluster_rank(), team = blockIdx.x / CLUSTER;
  const int group = team % (int)args.groups, first = team / (int)args.groups * COLUMNS;
  const int steps = args.steps, batch = args.batch, width = (int)args.groups * D;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Scale scale = scale_of(args);

  u32 weight[PASSES][DEPTH][4];
  load_weight(weight, args.weight + (i64)group * D * D, (int)args.groups * D * D, rank);
  for (int e = threadIdx.x; e < 4 * TILE + 4 * SLOTS * ROWS + 64; e += THREADS) shared[e] = 0;
  counters_start(arrived, (TILE - SHARE) * 2);
  publish();
  cluster_barrier();

  // In the pointwise part a thread serves one unit in one column of each tile.
  const int slot = threadIdx.x % SLOTS, unit = unit_in(rank * SLOTS + slot);
  const i64 at_unit = group * D + unit;
  int length[TILES], column[TILES];
  float c[TILES], dc[TILES];
  Activations saved_next[TILES];
  Cell c_next[TILES];
  Real grad_next[TILES];                               // both are converted where they are used: here, that would wait for the load
  float4 dbias = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int n = 0; n < TILES; n++) {
    int inside = n * 8 + threadIdx.x / SLOTS;
    column[n] = first + inside;
    bool mine = inside < COLUMNS && column[n] < batch && unit >= 0;
    length[n] = mine ? length_of(args.lengths, column[n], steps) : -1;
    c[n] = dc[n] = 0.f;
    c_next[n] = 0;
    grad_next[n] = 0;
    saved_next[n] = {};
    if (mine && args.grad_cn) dc[n] = scale.up * args.grad_cn[column[n] * (i64)width + at_unit];
  }

  // Loads what step s needs: its activations, the gradient of its output, and the cell before it.
  auto fetch = [&](int s) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      if (length[n] < 0) continue;
      i64 row = (i64)time_of(s, length[n], args.reverse) * batch + column[n];
      if (s < length[n]) {
        saved_next[n] = args.activations[row * width + at_unit];
        if (args.grad_out) grad_next[n] = args.grad_out[row * width + at_unit];
      }
      if (s > 0 && s <= length[n]) {
        i64 before = (i64)time_of(s - 1, length[n], args.reverse) * batch + column[n];
        c_next[n] = args.cells[before * width + at_unit];
      }
    }
  };
#pragma unroll
  for (int n = 0; n < TILES; n++)
    if (length[n] == steps)
      c[n] = recall_cell(args.cells[((i64)time_of(steps - 1, steps, args.reverse) * batch + column[n]) * width + at_unit]);
  fetch(steps - 1);

  // The gradient of a unit's h that came back from the step after, parts added in the order of their senders.
  auto collect = [&](int n, int buffer) {
    float sum = 0;
    const int at = (slot / 8 * ROWS + n * 8 + threadIdx.x / SLOTS) * 8 + slot % 8;
    const u16 *part = received + buffer * TILE + at, *mine = partial + (buffer ^ 1) * TILE + at;
#pragma unroll
    for (int sender = 0; sender < CLUSTER; sender++) sum += widen((sender == rank ? mine : part)[sender * SHARE]);
    return sum;
  };

  for (int done = 0; done < steps; done++) {
    const int s = steps - 1 - done;
    Cell c_before[TILES];
    Real grad[TILES];
    Activations saved[TILES];
#pragma unroll
    for (int n = 0; n < TILES; n++) { c_before[n] = c_next[n]; grad[n] = grad_next[n]; saved[n] = saved_next[n]; }
    if (s > 0) fetch(s - 1);
    if (done > 0) {
      counter_wait(&arrived[done & 1], (done - 1) >> 1 & 1);
      if (threadIdx.x == 0) counter_expect(&arrived[done & 1], (TILE - SHARE) * 2);
    }
    Gates d[TILES];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      if (length[n] < 0) continue;
      d[n] = {};
      i64 state = column[n] * (i64)width + at_unit;
      float before = s ? recall_cell(c_before[n]) : args.c0 ? args.c0[state] : 0.f;
      if (s < length[n]) {
        float dh = scale.up * to_float(grad[n]);
        if (s + 1 < length[n]) dh += collect(n, done & 1);
        else if (args.grad_hn) dh += scale.up * to_float(args.grad_hn[state]);
        Four exact = retreat(recall(saved[n]), c[n], before, dh, dc[n]);
        dbias.x += exact.i; dbias.y += exact.f; dbias.z += exact.g; dbias.w += exact.o;
        d[n] = to_gates(exact);
      }
      c[n] = before;
      *(uint2*)(own + (slot / 2 * ROWS + n * 8 + threadIdx.x / SLOTS) * 8 + slot % 2 * 4) = operands(d[n]);
    }
    publish();
    u16* outgoing = partial + (done & 1) * TILE;
    float sums[PASSES][TILES][4] = {};
    product<PASSES, DEPTH, ROWS>(sums, weight, own);
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        int inside = n * 8 + lane % 8;
        const float(&sum)[4] = sums[p][n];
        const u16* to = inside < COLUMNS ? outgoing + ((first_row(warp, p) / 8 + lane / 8 % 2) * ROWS + inside) * 8 : spare;
        store_matrices2_transposed(smem_address(to), narrow2(sum[0], sum[1]), narrow2(sum[2], sum[3]));
      }
    publish();
    if (threadIdx.x < CLUSTER && threadIdx.x != rank)
      send(outgoing + threadIdx.x * SHARE, received + ((done + 1) & 1) * TILE + rank * SHARE, &arrived[(done + 1) & 1],
           SHARE * 2, threadIdx.x);
    // Stores to global memory come last, while the copies are in flight.
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      if (length[n] < 0) continue;
      i64 at = ((i64)time_of(s, length[n], args.reverse) * batch + column[n]) * width + at_unit;
      args.dgates[at] = operands(d[n]);
      store_gates32(args, at, at_unit, width, d[n], scale);
      store_residual(args, at, d[n], scale);
    }
  }
  counter_wait(&arrived[steps & 1], (steps - 1) >> 1 & 1);
#pragma unroll
  for (int n = 0; n < TILES; n++)
    if (length[n] >= 0) {
      i64 at = column[n] * (i64)width + at_unit;
      args.dh0[at] = length[n] ? collect(n, steps & 1) * scale.down : args.grad_hn ? to_float(args.grad_hn[at]) : 0.f;
      args.dc0[at] = dc[n] * scale.down;
    }
  if (unit >= 0) args.dbias[(i64)(first / COLUMNS * 8 + threadIdx.x / SLOTS) * width + at_unit] = times(dbias, scale.down);
  cluster_barrier();                                   // no block exits while a copy from or to it is in flight
}
