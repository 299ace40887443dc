// Forward recurrence of a single step. No block needs the h of another, so nothing is kept or exchanged: the weights
// are read once, and a warp sums the four gates of one unit in one column.
struct Pair { float low, high; };                      // D is even: elements come in pairs
#if FLOAT
DEVICE Pair pair_at(const float* row, int k) { return {row[2 * k], row[2 * k + 1]}; }
#else
DEVICE Pair pair_at(const u16* row, int k) { u32 both = ((const u32*)row)[k]; return {widen(both), widen(both >> 16)}; }
#endif

extern "C" __global__ void __launch_bounds__(THREADS) forward_token(const __grid_constant__ ForwardArgs args) {
  const int lane = threadIdx.x % 32, unit = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
  const int width = (int)args.groups * D;
  if (unit >= width) return;                           // a whole warp at once
  const i64 at = (i64)blockIdx.y * width + unit;
  const Gates gates = load_gates(args.gates, at, unit, width);  // loaded before the product, used after it
  const Real residual = load_residual(args, at);
  float c = given(args.c0, at, args.real_cells);
  Four z = with_residual(to_four(gates), residual);
  if (args.bias) {
    const Four bias = bias_of(args, unit, width);
    z.i += bias.i; z.f += bias.f; z.g += bias.g; z.o += bias.o;
  }

  const int group = unit / D, to = unit % D;
  const Real* h = args.h0 + (i64)blockIdx.y * width + group * D;
  const Real* row = (const Real*)args.weight + ((i64)group * D + to) * D;  // FLOAT: nothing to keep, nothing rounded
  const i64 apart = (i64)width * D;                    // of the same unit's gates
  float sums[4] = {};
#pragma unroll 8
  for (int turn = 0; turn < (D / 2 + 31) / 32; turn++) {
    const int k = turn * 32 + lane;
    const bool inside = k < D / 2;                     // no branch, so that the loads of all turns are in flight together
    Pair pair = inside && args.h0 ? pair_at(h, k) : Pair{0.f, 0.f};
#pragma unroll
    for (int gate = 0; gate < 4; gate++) {
      Pair weight = inside ? pair_at(row + gate * apart, k) : Pair{0.f, 0.f};
      sums[gate] += weight.low * pair.low + weight.high * pair.high;
    }
  }
#pragma unroll
  for (int gate = 0; gate < 4; gate++)
    for (int step = 16; step > 0; step /= 2) sums[gate] += __shfl_xor_sync(~0u, sums[gate], step);
  if (lane != 0) return;

  z.i += sums[0]; z.f += sums[1]; z.g += sums[2]; z.o += sums[3];
  Real value;
  set(value, advance(z, c));
  args.out[at] = value;
  args.hn[at] = value;
  leave_cell(args, at, c);
  if (args.activations) {
    args.activations[at] = keep(z);
    args.cells[at] = keep_cell(c);
  }
}
