// Dynamic evaluation's update of all weights in one launch: one pass over each weight, its trained value, its gradient
// and the root mean square of its gradients. What differs between settings is on the device.
struct DynamicArgs {
  const float* rates;                // learning rate; decay over the mean of all rms; epsilon
  float* weight[TENSORS];
  const float* trained[TENSORS];
  const float* gradient[TENSORS];    // of the sum of a segment's losses
  const float* rms[TENSORS];
  i64 count[TENSORS];                // elements; 0 where the table has no more tensors
  i64 losses;                        // how many were summed
};

struct Rates { float learning, decay, epsilon; };

DEVICE float learned(float weight, float trained, float gradient, float rms, const Rates& rates) {
  float pull = fminf(1.f, rates.decay * rms);
  return weight + pull * (trained - weight) - rates.learning / (rms + rates.epsilon) * gradient;
}

// The tensors' packs of four, one tensor after another, are dealt to the threads in turn.
extern "C" __global__ void __launch_bounds__(THREADS) dynamic(const __grid_constant__ DynamicArgs args) {
  const Rates rates = {args.rates[0] / (float)args.losses, args.rates[1], args.rates[2]};
  const i64 stride = (i64)gridDim.x * THREADS;
  i64 pack = (i64)blockIdx.x * THREADS + threadIdx.x;
  for (int t = 0; t < TENSORS; t++) {
    const i64 count = args.count[t], packs = (count + 3) / 4;
    float* weight = args.weight[t];
    const float *trained = args.trained[t], *gradient = args.gradient[t], *rms = args.rms[t];
    const bool aligned = ((u64)weight | (u64)trained | (u64)gradient | (u64)rms) % 16 == 0;
    for (; pack < packs; pack += stride) {
      if (aligned && 4 * pack + 4 <= count) {
        float4 w = ((float4*)weight)[pack], w0 = ((const float4*)trained)[pack];
        float4 g = ((const float4*)gradient)[pack], r = ((const float4*)rms)[pack];
        w.x = learned(w.x, w0.x, g.x, r.x, rates); w.y = learned(w.y, w0.y, g.y, r.y, rates);
        w.z = learned(w.z, w0.z, g.z, r.z, rates); w.w = learned(w.w, w0.w, g.w, r.w, rates);
        ((float4*)weight)[pack] = w;
      } else {
        for (i64 i = 4 * pack; i < 4 * pack + 4 && i < count; i++)
          weight[i] = learned(weight[i], trained[i], gradient[i], rms[i], rates);
      }
    }
    pack -= packs;                   // where this thread's next pack lies in the next tensor
  }
}
