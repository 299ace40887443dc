// activation * sum of dropped^2 + temporal * sum of (raw[t] - raw[t-1])^2, one part per block; the sum of all parts is the result.
typedef Number<FROM32> Value;

struct PenaltiesArgs {
  const Value* dropped;    // (count), or null: no such term
  const Value* raw;        // (count), or null: no such term
  float* parts;            // (blocks)
  i64 count, step;         // values of all steps, and of one
  double activation, temporal;
};

DEVICE float sum_of_lanes(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

extern "C" __global__ void __launch_bounds__(THREADS) penalties(PenaltiesArgs a) {
  __shared__ float of_warp[THREADS / 32];
  float squares = 0.f, changes = 0.f;
  const i64 stride = (i64)gridDim.x * THREADS * VEC;
  for (i64 i = ((i64)blockIdx.x * THREADS + threadIdx.x) * VEC; i < a.count; i += stride) {
    if (a.dropped) {
      const auto values = load<VEC>(a.dropped + i);
      for (int k = 0; k < VEC; k++) squares += to_float(values.at[k]) * to_float(values.at[k]);
    }
    if (a.raw && i >= a.step) {
      const auto now = load<VEC>(a.raw + i), before = load<VEC>(a.raw + i - a.step);
      for (int k = 0; k < VEC; k++) {
        const float change = to_float(now.at[k]) - to_float(before.at[k]);
        changes += change * change;
      }
    }
  }
  const float mine = sum_of_lanes((float)a.activation * squares + (float)a.temporal * changes);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x < 32) {
    const float all = sum_of_lanes(threadIdx.x < THREADS / 32 ? of_warp[threadIdx.x] : 0.f);
    if (threadIdx.x == 0) a.parts[blockIdx.x] = all;
  }
}
