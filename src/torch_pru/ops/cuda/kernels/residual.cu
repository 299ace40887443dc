// A residual input and its gradient, where the recurrence does not add them itself: one 16-bit value for the four
// adjacent gates of a unit. Two units at a time: 16 bytes of gates.
struct ResidualArgs {
  u16* values;             // (rows, M)
  u16* gates;              // (rows, M, 4)
  i64 count;               // rows * M
};

DEVICE u32 twice(u32 x) { return x | x << 16; }

DEVICE float total(uint2 v) {
  Four x = widen4(v);
  return (x.i + x.f) + (x.g + x.o);
}

extern "C" __global__ void __launch_bounds__(THREADS) spread(ResidualArgs a) {
  i64 pairs = a.count / 2, stride = (i64)gridDim.x * THREADS, first = (i64)blockIdx.x * THREADS + threadIdx.x;
  for (i64 p = first; p < pairs; p += stride) {
    u32 pair = ((const u32*)a.values)[p], one = twice(pair & 0xffff), two = twice(pair >> 16);
    ((uint4*)a.gates)[p] = make_uint4(one, one, two, two);
  }
  if (first == 0 && a.count % 2) {
    u32 last = twice(a.values[a.count - 1]);
    ((uint2*)a.gates)[a.count - 1] = make_uint2(last, last);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) collect(ResidualArgs a) {
  i64 pairs = a.count / 2, stride = (i64)gridDim.x * THREADS, first = (i64)blockIdx.x * THREADS + threadIdx.x;
  for (i64 p = first; p < pairs; p += stride) {
    uint4 v = ((const uint4*)a.gates)[p];
    ((u32*)a.values)[p] = narrow2(total(make_uint2(v.x, v.y)), total(make_uint2(v.z, v.w)));
  }
  if (first == 0 && a.count % 2) a.values[a.count - 1] = narrow(total(((const uint2*)a.gates)[a.count - 1]));
}
