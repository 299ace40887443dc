// A vector of floats as wide as the instruction set has it, and the functions of the gates.
//
// Included once per instruction set, with WIDTH lanes; everything is in a namespace of its own.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX2__)
#define WIDTH 8
#else
#define WIDTH 4
#endif

#define INLINE inline __attribute__((always_inline))

namespace KERNELS {

typedef float Vector __attribute__((vector_size(4 * WIDTH)));
typedef float Unaligned __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t Integers __attribute__((vector_size(4 * WIDTH)));

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t parts(int64_t total, int64_t size) { return (total + size - 1) / size; }

INLINE Vector fill(float value) { return value - Vector{}; }
INLINE Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
INLINE void store(float* to, Vector value) { *reinterpret_cast<Unaligned*>(to) = value; }

#if defined(__AVX512F__)
INLINE __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
INLINE Vector load(const float* from, int64_t count) {
    return count >= WIDTH ? load(from) : (Vector)_mm512_maskz_loadu_ps(first_lanes(count), from);
}
INLINE void store(float* to, Vector value, int64_t count) {
    if (count >= WIDTH) store(to, value);
    else _mm512_mask_storeu_ps(to, first_lanes(count), (__m512)value);
}
#elif defined(__AVX2__)
INLINE __m256i first_lanes(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE Vector load(const float* from, int64_t count) {
    return count >= WIDTH ? load(from) : (Vector)_mm256_maskload_ps(from, first_lanes(count));
}
INLINE void store(float* to, Vector value, int64_t count) {
    if (count >= WIDTH) store(to, value);
    else _mm256_maskstore_ps(to, first_lanes(count), (__m256)value);
}
#else
INLINE Vector load(const float* from, int64_t count) {
    if (count >= WIDTH) return load(from);
    Vector value{};
    for (int64_t lane = 0; lane < count; ++lane) value[lane] = from[lane];
    return value;
}
INLINE void store(float* to, Vector value, int64_t count) {
    if (count >= WIDTH) return store(to, value);
    for (int64_t lane = 0; lane < count; ++lane) to[lane] = value[lane];
}
#endif

INLINE Vector maximum(Vector a, Vector b) { return a > b ? a : b; }

INLINE bool any(Integers mask) {  // whether a comparison is true in any lane
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    int32_t found = 0;
    for (int lane = 0; lane < WIDTH; ++lane) found |= mask[lane];
    return found != 0;
#endif
}

INLINE float sum(Vector value) {
    float lanes[WIDTH];
    store(lanes, value);
    for (int half = WIDTH / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

// A NaN passes through both bounds: comparisons with it are false.
INLINE Vector clamp(Vector x, float low, float high) {
    x = x < low ? fill(low) : x;
    return x > high ? fill(high) : x;
}

// 1 / x for x neither huge nor tiny, exact to about the last bit.
INLINE Vector reciprocal(Vector x) {
#if defined(__AVX512F__)
    Vector guess = (Vector)_mm512_maskz_rcp14_ps(0xFFFF, (__m512)x);
    return guess + guess * (1.0f - x * guess);
#else
    return 1.0f / x;
#endif
}

// exp(x) for x in [-87, 87]: 2^n * exp(r) with |r| at most ln(2) / 2 (Cephes' polynomial).
INLINE Vector exponential(Vector x) {
    const float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
    Vector shifted = x * 1.44269504088896341f + round;
    Vector n = shifted - round;
    Vector r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Vector y = fill(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + (r + 1.0f);
    Integers power = ((Integers)shifted - 0x4B400000 + 127) << 23;
    return y * (Vector)power;
}

INLINE Vector sigmoid(Vector x) { return reciprocal(1.0f + exponential(clamp(-x, -87.0f, 87.0f))); }

// A rational approximation that is exact to a few units in the last place (Eigen's).
INLINE Vector tanh(Vector x) {
    x = clamp(x, -7.90531110763549805f, 7.90531110763549805f);
    Vector square = x * x;
    Vector p = fill(-2.76076847742355e-16f);
    p = p * square + 2.00018790482477e-13f;
    p = p * square - 8.60467152213735e-11f;
    p = p * square + 5.12229709037114e-08f;
    p = p * square + 1.48572235717979e-05f;
    p = p * square + 6.37261928875436e-04f;
    p = p * square + 4.89352455891786e-03f;
    Vector q = fill(1.19825839466702e-06f);
    q = q * square + 1.18534705686654e-04f;
    q = q * square + 2.26843463243900e-03f;
    q = q * square + 4.89352518554385e-03f;
    return x * p * reciprocal(q);
}

}  // namespace KERNELS
