// Forward recurrence of a single step, from the contribution of the input to the gates.
extern "C" __global__ void __launch_bounds__(THREADS) forward_token(const __grid_constant__ ForwardArgs args) {
  const int lane = threadIdx.x % 32, unit = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
  const int width = (int)args.groups * D;
  if (unit >= width) return;                           // a whole warp at once
  const i64 at = (i64)blockIdx.y * width + unit;
  const Gates gates = load_gates(args.gates, at, unit, width);  // loaded before the product, used after it
  const Real residual = load_residual(args, at);
  const float c = given(args.c0, at, args.real_cells);
  Four z = with_residual(to_four(gates), residual);
  if (args.bias) {
    const Four bias = bias_of(args, unit, width);
    z.i += bias.i; z.f += bias.f; z.g += bias.g; z.o += bias.o;
  }
  float sums[4] = {};
  add_context(sums, (const Real*)args.weight, args.h0, unit, width);  // FLOAT: nothing to keep, nothing rounded
  add_lanes(z, sums);
  if (lane != 0) return;
  const float after = finish(args, at, z, c);
  if (args.activations) {
    args.activations[at] = keep(z);
    args.cells[at] = keep_cell(after);
  }
}
