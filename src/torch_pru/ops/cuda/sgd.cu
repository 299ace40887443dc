// One pass over a weight: clip, decay, step, average. Everything that changes between steps is on the device.
struct SgdArgs {
  float* weight;
  const float* gradient;
  float* average;          // or null
  const float* norm;       // of the gradient over all weights
  const float* rate;
  const float* share;      // of the new weights in the average
  i64 count;
  double clip, decay;
};

DEVICE void update(float& w, float g, float scale, float rate, float decay) { w -= rate * (g * scale + decay * w); }
DEVICE void follow(float& a, float w, float share) { a += (w - a) * share; }

extern "C" __global__ void __launch_bounds__(THREADS) sgd(SgdArgs s) {
  float scale = fminf(1.f, (float)s.clip / (*s.norm + 1e-6f)), rate = *s.rate, decay = (float)s.decay, share = *s.share;
  i64 packs = s.count / 4, stride = (i64)gridDim.x * THREADS, first = (i64)blockIdx.x * THREADS + threadIdx.x;
  for (i64 p = first; p < packs; p += stride) {
    float4 w = ((float4*)s.weight)[p], g = ((const float4*)s.gradient)[p];
    update(w.x, g.x, scale, rate, decay); update(w.y, g.y, scale, rate, decay);
    update(w.z, g.z, scale, rate, decay); update(w.w, g.w, scale, rate, decay);
    ((float4*)s.weight)[p] = w;
    if (s.average) {
      float4 a = ((float4*)s.average)[p];
      follow(a.x, w.x, share); follow(a.y, w.y, share); follow(a.z, w.z, share); follow(a.w, w.w, share);
      ((float4*)s.average)[p] = a;
    }
  }
  for (i64 i = 4 * packs + first; i < s.count; i += stride) {
    update(s.weight[i], s.gradient[i], scale, rate, decay);
    if (s.average) follow(s.average[i], s.weight[i], share);
  }
}
