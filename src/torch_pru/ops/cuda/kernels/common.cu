// Shared by all kernels. No CUDA headers: NVRTC needs nothing but this text.
// Compile-time constants arrive as -D options; see plan.py for what each means.
DEVICE u16 narrow_half(float x) { return half_of(fminf(fmaxf(x, -65504.f), 65504.f)); }

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(u16 x) { return widen(x); }
DEVICE void set(float& y, float x) { y = x; }
DEVICE void set(u16& y, float x) { y = narrow(x); }
DEVICE u16 operand(float x) { return narrow(x); }
DEVICE u16 operand(u16 x) { return x; }

struct Four { float i, f, g, o; };                     // a unit's four gates
DEVICE Four widen4(uint2 v) { return {widen(v.x), widen(v.x >> 16), widen(v.y), widen(v.y >> 16)}; }
DEVICE uint2 narrow4(const Four& d) { return make_uint2(narrow2(d.i, d.f), narrow2(d.g, d.o)); }

#if FLOAT
// Only operands are rounded: activations are accurate to about 2^-22.
DEVICE float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }
DEVICE float tanh_fast(float x) { return 2.f * sigmoid(2.f * x) - 1.f; }
#else
// The hardware's tanh is accurate to 2^-11, half a unit in the last place of float16, no more than h is rounded by.
DEVICE float tanh_fast(float x) { return tanh_approximate(x); }
DEVICE float sigmoid(float x) { return 0.5f * tanh_fast(0.5f * x) + 0.5f; }
#endif

// The time index of processing step s, for a column of `length` valid steps.
// After its last valid step a column is idle, and the index runs over the padding.
DEVICE int time_of(int s, int length, bool reverse) { return reverse && s < length ? length - 1 - s : s; }

// One unit's step forward: z are the pre-activations, c is updated, the new hidden value returned.
DEVICE float advance(Four& z, float& c) {
  z.i = sigmoid(z.i); z.f = sigmoid(z.f); z.g = tanh_fast(z.g); z.o = sigmoid(z.o);
  c = z.f * c + z.i * z.g;
  return z.o * tanh_fast(c);
}
