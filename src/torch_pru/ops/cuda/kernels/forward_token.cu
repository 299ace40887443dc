// Forward recurrence of a single step. Nobody waits for anybody's h, so nothing is kept or exchanged: the weights
// pass by once, from memory through registers, and a warp sums up the four gates of one unit in one column.
extern "C" __global__ void __launch_bounds__(THREADS) forward_token(const __grid_constant__ ForwardArgs args) {
  const int lane = threadIdx.x % 32, unit = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
  const int width = (int)args.groups * D;
  if (unit >= width) return;                           // a whole warp at once
  const i64 at = (i64)blockIdx.y * width + unit;
  const uint2 gates = args.gates[at];                  // asked for before the product, used after it
  float c = args.c0[at];
  Four z = widen4(gates);
  if (args.bias) {
    z.i += args.bias[unit]; z.f += args.bias[width + unit];
    z.g += args.bias[2 * width + unit]; z.o += args.bias[3 * width + unit];
  }

  const int group = unit / D, to = unit % D;
  const u32* h = (const u32*)(args.h0 + (i64)blockIdx.y * width + group * D);  // D is even: pairs
  const u32* row = (const u32*)(args.weight + ((i64)group * 4 * D + to) * D);
  float sums[4] = {};
#pragma unroll 8
  for (int turn = 0; turn < (D / 2 + 31) / 32; turn++) {
    const int k = turn * 32 + lane;
    const bool inside = k < D / 2;                     // no branch: the loads of all turns go out together
    u32 pair = inside ? h[k] : 0;
    float low = widen(pair), high = widen(pair >> 16);
#pragma unroll
    for (int gate = 0; gate < 4; gate++) {
      u32 weight = inside ? row[gate * (D * D / 2) + k] : 0;
      sums[gate] += widen(weight) * low + widen(weight >> 16) * high;
    }
  }
#pragma unroll
  for (int gate = 0; gate < 4; gate++)
    for (int step = 16; step > 0; step /= 2) sums[gate] += __shfl_xor_sync(~0u, sums[gate], step);
  if (lane != 0) return;

  z.i += sums[0]; z.f += sums[1]; z.g += sums[2]; z.o += sums[3];
  u16 value = narrow(advance(z, c));
  args.out[at] = value;
  args.hn[at] = value;
  args.cn[at] = c;
  if (args.activations) {
    args.activations[at] = make_uint2(narrow2_half(z.i, z.f), narrow2_half(z.g, z.o));
    args.cells[at] = narrow_half(c);
  }
}
