// Shared by all kernels. No CUDA headers: NVRTC needs nothing but this text.
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

DEVICE float widen_half(u16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
DEVICE u16 narrow_half(float x) {
  u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(fminf(fmaxf(x, -65504.f), 65504.f))); return y;
}
DEVICE u32 narrow2_half(float low, float high) {
  u32 y; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y;
}

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
// Operands are rounded, nothing else: activations are good to some 2^-22.
DEVICE float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }
DEVICE float tanh_fast(float x) { return 2.f * sigmoid(2.f * x) - 1.f; }
#else
// The hardware's tanh is good to 2^-11, half a unit of float16's last place: the rounding of h hides it.
DEVICE float tanh_fast(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float sigmoid(float x) { return 0.5f * tanh_fast(0.5f * x) + 0.5f; }
#endif

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

// One unit's step forward: z are the pre-activations, c is updated, the new hidden value returned.
DEVICE float advance(Four& z, float& c) {
  z.i = sigmoid(z.i); z.f = sigmoid(z.f); z.g = tanh_fast(z.g); z.o = sigmoid(z.o);
  c = z.f * c + z.i * z.g;
  return z.o * tanh_fast(c);
}
