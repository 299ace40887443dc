// Shared by the kernels of the recurrence: their arguments, and the dtypes that they read and write.
// Those have the operands' 16 bits, a unit's four gates side by side. With FLOAT they are float32, gate by gate as a plain
// linear transform leaves them, and only what is multiplied with weights is rounded: to float16, whose mantissa is TF32's.
// What backward needs again is kept in float16 where operands have 16 bits: activations lie in [-1, 1], where float16 is
// eight times finer than bfloat16.
#if FLOAT
typedef float Real;                                    // h and its gradient
typedef Four Gates;                                    // a unit's, or their gradients, as they lie in registers
typedef float4 Activations;                            // a unit's, as they are kept
typedef float Cell;
#else
typedef u16 Real;
typedef uint2 Gates;
typedef uint2 Activations;
typedef u16 Cell;
#endif

struct ForwardArgs {
  const Real* gates;       // (T, B, M, 4); FLOAT: (T, B, 4, M)
  const Real* residual;    // (T, B, M), read with RESIDUAL only
  const u16* weight;       // (4, G, D, D); FLOAT, of a single step: float32
  const void* bias;        // (4, M) or null
  const void* other_bias;  // (4, M) or null: added to the first, of the same kind
  const Real* h0;          // (B, M), or null: zeros
  const void* c0;          // (B, M), or null: zeros
  const i64* lengths;      // (B) or null
  Real* out;               // (T, B, M)
  Real* hn;                // (B, M)
  void* cn;                // (B, M), of the kind of c0
  Activations* activations;  // (T, B, M); null when nothing is kept
  Cell* cells;             // (T, B, M)
  u16* exchange;           // grid variant: (T, G, B, PADDED), all bits set beforehand
  i64 steps, batch, groups, reverse;
  i64 real_bias, real_cells;  // whether the biases, and whether c0 and cn, are Real; else they are float32
};

struct BackwardArgs {
  const Real* grad_out;    // (T, B, M) or null
  const Real* grad_hn;     // (B, M) or null
  const float* grad_cn;    // (B, M) or null
  const u16* weight;       // (4, G, D, D)
  const float* c0;         // (B, M), or null: zeros
  const Activations* activations;
  const Cell* cells;
  const i64* lengths;
  uint2* dgates;           // (T, B, M) units of four gates; FLOAT: scaled
  Real* dresidual;         // (T, B, M) or null; written with RESIDUAL only
  float* dh0;              // (B, M)
  float* dc0;              // (B, M)
  float4* dbias;           // (rows, M): sums over steps, one row for each thread that serves a unit
#if FLOAT
  const u32* largest;      // (parts), what gradient_scale.cu leaves
  float* dgates32;         // (T, B, 4, M)
  float* down;             // one number, what undoes the scale of dgates
#endif
  i64 steps, batch, groups, reverse;
#if FLOAT
  i64 parts;
#endif
};

// An element of an array that is of Real, of float32, or null for zeros.
DEVICE float given(const void* array, i64 at, i64 real) {
  return !array ? 0.f : real ? to_float(((const Real*)array)[at]) : ((const float*)array)[at];
}

template <class Args> DEVICE void leave_cell(const Args& args, i64 at, float c) {
  if (args.real_cells) set(((Real*)args.cn)[at], c);
  else ((float*)args.cn)[at] = c;
}

template <class Args> DEVICE Four bias_of(const Args& args, i64 unit, int width) {
  auto of_gate = [&](int gate) {
    const i64 at = gate * (i64)width + unit;
    return given(args.bias, at, args.real_bias) + given(args.other_bias, at, args.real_bias);
  };
  return {of_gate(0), of_gate(1), of_gate(2), of_gate(3)};
}

DEVICE int length_of(const i64* lengths, int column, int steps) { return lengths ? (int)lengths[column] : steps; }

// One unit's step backward: from the gradient of h (and of c, updated) to those of the pre-activations.
DEVICE Four retreat(const Four& a, float c, float c_before, float dh, float& dc) {
  float tc = tanh_fast(c);
  dc += dh * a.o * (1.f - tc * tc);
  Four d;
  d.i = dc * a.g * a.i * (1.f - a.i);
  d.f = dc * c_before * a.f * (1.f - a.f);
  d.g = dc * a.i * (1.f - a.g * a.g);
  d.o = dh * tc * a.o * (1.f - a.o);
  dc *= a.f;
  return d;
}

// Gradients, unlike h, may have any magnitude, and float16 has not: with FLOAT all of a call's are multiplied by one power
// of two, such that the largest of those given lies in [4, 8), and results are divided by it.
struct Scale { float up, down; };
DEVICE float4 times(float4 v, float x) { return make_float4(v.x * x, v.y * x, v.z * x, v.w * x); }

#if FLOAT
DEVICE Gates load_gates(const Real* gates, i64 at, i64 unit, int width) {
  const Real* of_unit = gates + 4 * at - 3 * unit;     // `at` is row * width + unit, and a row has four gates
  return {of_unit[0], of_unit[width], of_unit[2 * width], of_unit[3 * width]};
}
DEVICE Four to_four(const Gates& gates) { return gates; }
DEVICE Gates to_gates(const Four& d) { return d; }
DEVICE uint2 operands(const Gates& d) { return narrow4(d); }
DEVICE Activations keep(const Four& z) { return make_float4(z.i, z.f, z.g, z.o); }
DEVICE Four recall(const Activations& a) { return {a.x, a.y, a.z, a.w}; }
DEVICE Cell keep_cell(float c) { return c; }
DEVICE float recall_cell(Cell c) { return c; }

DEVICE void store_gates32(const BackwardArgs& args, i64 at, i64 unit, int width, const Gates& d, Scale scale) {
  float* of_unit = args.dgates32 + 4 * at - 3 * unit;
  of_unit[0] = d.i * scale.down; of_unit[width] = d.f * scale.down;
  of_unit[2 * width] = d.g * scale.down; of_unit[3 * width] = d.o * scale.down;
}

// For whole warps. A gradient that is infinite or NaN is not scaled, and propagates.
DEVICE Scale scale_of(const BackwardArgs& args) {
  u32 most = 0;
  for (int i = threadIdx.x % 32; i < (int)args.parts; i += 32) most = max(most, args.largest[i]);
  int exponent = __reduce_max_sync(~0u, most) >> 23, up = exponent == 255 ? 127 : min(253, 256 - exponent);
  Scale scale = {__uint_as_float((u32)up << 23), __uint_as_float((u32)(254 - up) << 23)};
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *args.down = scale.down;
  return scale;
}
#else
DEVICE Gates load_gates(const Real* gates, i64 at, i64, int) { return ((const uint2*)gates)[at]; }
DEVICE Four to_four(Gates gates) { return widen4(gates); }
DEVICE Gates to_gates(const Four& d) { return narrow4(d); }
DEVICE uint2 operands(Gates d) { return d; }
DEVICE Activations keep(const Four& z) { return make_uint2(narrow2_half(z.i, z.f), narrow2_half(z.g, z.o)); }
DEVICE Four recall(Activations a) {
  return {widen_half(a.x), widen_half(a.x >> 16), widen_half(a.y), widen_half(a.y >> 16)};
}
DEVICE Cell keep_cell(float c) { return narrow_half(c); }
DEVICE float recall_cell(Cell c) { return widen_half(c); }
DEVICE void store_gates32(const BackwardArgs&, i64, i64, int, Gates, Scale) {}
DEVICE Scale scale_of(const BackwardArgs&) { return {1.f, 1.f}; }
#endif

// A residual is added to the gates in float32. Its gradient is the sum of theirs as `dgates` has them, rounded. Without
// RESIDUAL the kernels have no code for it, and need no registers.
#if RESIDUAL
DEVICE Real load_residual(const ForwardArgs& args, i64 at) { return args.residual[at]; }
DEVICE Four with_residual(const Four& z, Real residual) {
  const float x = to_float(residual);
  return {z.i + x, z.f + x, z.g + x, z.o + x};
}
DEVICE void store_residual(const BackwardArgs& args, i64 at, const Gates& d, Scale scale) {
  const Four each = to_four(d);
  if (args.dresidual) set(args.dresidual[at], ((each.i + each.f) + (each.g + each.o)) * scale.down);
}
#else
DEVICE Real load_residual(const ForwardArgs&, i64) { return 0; }
DEVICE Four with_residual(const Four& z, Real) { return z; }
DEVICE void store_residual(const BackwardArgs&, i64, const Gates&, Scale) {}
#endif
