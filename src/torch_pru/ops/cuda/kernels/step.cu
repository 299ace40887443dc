// Shared by the kernels of a single step, in which no block needs the h of another. The weights are read once. A warp
// sums the four gates of one unit in one column.
struct Pair { float low, high; };
#if FLOAT
DEVICE Pair pair_at(const float* row, int k) { return {row[2 * k], row[2 * k + 1]}; }
#else
DEVICE Pair pair_at(const u16* row, int k) { u32 both = ((const u32*)row)[k]; return {widen(both), widen(both >> 16)}; }
#endif

// Adds this lane's part of the products of a vector with a unit's rows of a weight, one row for each gate, `apart` from
// each other. `weight_at` and `vector_at` return the pair of elements of a number.
template <class Weight, class Vector>
DEVICE void add_products(float (&sums)[4], const Real* row, i64 apart, int pairs, Weight weight_at, Vector vector_at) {
  const int lane = threadIdx.x % 32;
#pragma unroll 8
  for (int turn = 0; turn < (pairs + 31) / 32; turn++) {
    const int k = turn * 32 + lane;
    const bool inside = k < pairs;                     // no branch, so that the loads of all turns are in flight together
    const Pair pair = inside ? vector_at(k) : Pair{0.f, 0.f};
#pragma unroll
    for (int gate = 0; gate < 4; gate++) {
      const Pair weight = inside ? weight_at(row + gate * apart, k) : Pair{0.f, 0.f};
      sums[gate] += weight.low * pair.low + weight.high * pair.high;
    }
  }
}

// The same for the context and the unit's group of h. If h0 is null, h is zero. D is even.
DEVICE void add_context(float (&sums)[4], const Real* weight, const Real* h0, int unit, int width) {
  if (!h0) return;
  const int group = unit / D, to = unit % D;
  const Real* h = h0 + (i64)blockIdx.y * width + group * D;
  auto weight_at = [](const Real* row, int k) { return pair_at(row, k); };
  auto vector_at = [&](int k) { return pair_at(h, k); };
  add_products(sums, weight + ((i64)group * D + to) * D, (i64)width * D, D / 2, weight_at, vector_at);
}

DEVICE void add_lanes(Four& z, float (&sums)[4]) {
#pragma unroll
  for (int gate = 0; gate < 4; gate++)
    for (int step = 16; step > 0; step /= 2) sums[gate] += __shfl_xor_sync(~0u, sums[gate], step);
  z.i += sums[0]; z.f += sums[1]; z.g += sums[2]; z.o += sums[3];
}

// Stores the unit's new state and returns its c. `at` is column * M + unit.
template <class Args> DEVICE float finish(const Args& args, i64 at, Four& z, float c) {
  Real value;
  set(value, advance(z, c));
  args.out[at] = value;
  args.hn[at] = value;
  leave_cell(args, at, c);
  return c;
}
