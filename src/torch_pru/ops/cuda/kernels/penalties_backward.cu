// The gradients of penalties.cu: 2 * activation * dropped, and for raw the change from the step before less the change
// to the step after, times 2 * temporal.
typedef Number<FROM32> Value;

struct PenaltiesBackwardArgs {
  const Value* dropped;    // (count), or null with its gradient
  const Value* raw;        // (count), or null with its gradient
  const float* gradient;   // (1): of the penalties' sum
  Value* grad_dropped;
  Value* grad_raw;
  i64 count, step;         // values of all steps, and of one
  double activation, temporal;
};

extern "C" __global__ void __launch_bounds__(THREADS) penalties_backward(PenaltiesBackwardArgs a) {
  const float activation = 2.f * (float)a.activation * *a.gradient, temporal = 2.f * (float)a.temporal * *a.gradient;
  const i64 stride = (i64)gridDim.x * THREADS * VEC;
  for (i64 i = ((i64)blockIdx.x * THREADS + threadIdx.x) * VEC; i < a.count; i += stride) {
    Pack<Value, VEC> out;
    if (a.dropped) {
      const auto values = load<VEC>(a.dropped + i);
      for (int k = 0; k < VEC; k++) set(out.at[k], activation * to_float(values.at[k]));
      store(a.grad_dropped + i, out);
    }
    if (a.raw) {
      const auto now = load<VEC>(a.raw + i);
      // At either end the missing neighbour counts as equal: no change, no gradient.
      const auto before = i >= a.step ? load<VEC>(a.raw + i - a.step) : now;
      const auto after = i + a.step < a.count ? load<VEC>(a.raw + i + a.step) : now;
      for (int k = 0; k < VEC; k++) {
        const float x = to_float(now.at[k]);
        set(out.at[k], temporal * ((x - to_float(before.at[k])) - (to_float(after.at[k]) - x)));
      }
      store(a.grad_raw + i, out);
    }
  }
}
