// Shared by every kernel of the recurrence. No CUDA headers: NVRTC needs nothing but this text.
// Compile-time constants arrive as -D options; see plan.py for what each means.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE __device__ __forceinline__

// Operand elements are float16 or bfloat16, held as raw 16-bit words.
#if BF16
#define ELEMENT "bf16"
DEVICE float widen(u16 x) { return __uint_as_float((u32)x << 16); }
#else
#define ELEMENT "f16"
DEVICE float widen(u16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
#endif
DEVICE u16 narrow(float x) { u16 y; asm("cvt.rn." ELEMENT ".f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
DEVICE u32 narrow2(float low, float high) {
  u32 y; asm("cvt.rn." ELEMENT "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y;
}

// What backward needs again is kept in float16 whatever the operands are: activations lie in [-1, 1],
// where float16 is eight times finer than bfloat16.
DEVICE float widen_half(u16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
DEVICE u16 narrow_half(float x) {
  u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(fminf(fmaxf(x, -65504.f), 65504.f))); return y;
}
DEVICE u32 narrow2_half(float low, float high) {
  u32 y; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y;
}

struct Four { float i, f, g, o; };                     // a unit's four gates
DEVICE Four widen4(uint2 v) { return {widen(v.x), widen(v.x >> 16), widen(v.y), widen(v.y >> 16)}; }
DEVICE Four widen4_half(uint2 v) {
  return {widen_half(v.x), widen_half(v.x >> 16), widen_half(v.y), widen_half(v.y >> 16)};
}

// The hardware's tanh is good to 2^-11, half a unit of float16's last place: the rounding of h hides it.
DEVICE float tanh_fast(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float sigmoid(float x) { return 0.5f * tanh_fast(0.5f * x) + 0.5f; }

// The column's own clock: the time index of processing step s for a column of `length` valid steps.
// Past its length a column is idle, and its index runs over the padding.
DEVICE int time_of(int s, int length, bool reverse) { return reverse && s < length ? length - 1 - s : s; }

DEVICE u32 smem_address(const void* p) {
  u32 a; asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(a) : "l"(p)); return a;
}

DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT "." ELEMENT ".f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct ForwardArgs {
  const uint2* gates;      // (T, B, M) units of four gates
  const u16* weight;       // (G, 4, D, D)
  const float* bias;       // (4, M) or null
  const u16* h0;           // (B, M)
  const float* c0;         // (B, M)
  const i64* lengths;      // (B) or null
  u16* out;                // (T, B, M)
  u16* hn;                 // (B, M)
  float* cn;               // (B, M)
  uint2* activations;      // (T, B, M) units of four gates, float16; null when nothing is saved
  u16* cells;              // (T, B, M) float16
  u16* exchange;           // grid variant: (T, G, B, DP), all bits set beforehand
  i64 steps, batch, groups, reverse;
};

struct BackwardArgs {
  const u16* grad_out;     // (T, B, M) or null
  const u16* grad_hn;      // (B, M) or null
  const float* grad_cn;    // (B, M) or null
  const u16* weight;       // (G, 4, D, D)
  const float* c0;         // (B, M)
  const uint2* activations;
  const u16* cells;
  const i64* lengths;
  uint2* dgates;           // (T, B, M) units of four gates
  float* dh0;              // (B, M)
  float* dc0;              // (B, M)
  float4* dbias;           // (rows, M): sums over steps, one row for each thread that serves a unit
  i64 steps, batch, groups, reverse;
};

DEVICE int length_of(const i64* lengths, int column, int steps) { return lengths ? (int)lengths[column] : steps; }

// One unit's step forward: z are the pre-activations, c is updated, the new hidden value returned.
DEVICE float advance(Four& z, float& c) {
  z.i = sigmoid(z.i); z.f = sigmoid(z.f); z.g = tanh_fast(z.g); z.o = sigmoid(z.o);
  c = z.f * c + z.i * z.g;
  return z.o * tanh_fast(c);
}

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

DEVICE uint2 narrow4(const Four& d) { return make_uint2(narrow2(d.i, d.f), narrow2(d.g, d.o)); }
