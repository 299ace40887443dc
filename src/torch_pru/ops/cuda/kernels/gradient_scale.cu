// The largest magnitude among the gradients that the float32 recurrence's backward is given, one for each block, as bits:
// those of a float without its sign grow with it, and a NaN's are above all others. Backward takes the maximum.
struct GradientScaleArgs {
  const float* grads[3];   // of out, hn and cn, or null
  u32* largest;            // (blocks)
  i64 counts[3];
};

extern "C" __global__ void __launch_bounds__(THREADS) gradient_scale(GradientScaleArgs a) {
  __shared__ u32 of_warp[THREADS / 32];
  u32 most = 0;
  for (int g = 0; g < 3; g++)
    if (a.grads[g])
#pragma unroll 8
      for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < a.counts[g]; i += (i64)gridDim.x * THREADS)
        most = max(most, __float_as_uint(a.grads[g][i]) & 0x7fffffff);
  most = __reduce_max_sync(~0u, most);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  most = threadIdx.x < THREADS / 32 ? of_warp[threadIdx.x] : 0;
  most = __reduce_max_sync(~0u, most);
  if (threadIdx.x == 0) a.largest[blockIdx.x] = most;
}
