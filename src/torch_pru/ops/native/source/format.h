// The formats in which the factors of products are kept; sums are float32 in both.
//
// A product over rows takes ROWS_IN_CELL of them together: their values of one column are a cell of 32 bits.
#pragma once

#include "product.h"

namespace KERNELS {

// float32: rows are read where they lie.
struct Float32 {
    using Value = float;
    static constexpr bool is_exact = true;
    static constexpr int64_t ROWS_IN_CELL = 1;

    static INLINE int64_t padded(int64_t count) { return count; }
    static INLINE Depth depth(int64_t length) { return adjacent(length); }
    static INLINE Depth cells(int64_t count, int64_t step) { return {1, count, 0, step}; }
    static INLINE void put(float* to, Vector value, int64_t lanes) { store(to, value, lanes); }
    static INLINE void pack(const float*, int64_t, float*) {}  // panels are used as they are

    // The cells of some columns; null stands for a row of zeros.
    static INLINE Vector merge(const float* const* rows, int64_t column, int64_t lanes) {
        return rows[0] ? load(rows[0] + column, lanes) : Vector{};
    }
};

#if defined(__AVX512BF16__)

struct Pairs {
    int64_t count, step;  // from one pair to the next in a row of A, in pairs
};

// Two adjacent values of a row by two of every column, in one instruction.
template <int rows, int vectors>
INLINE void multiply(const uint16_t* const* a, Pairs pairs, const uint16_t* panel, Vector (&sums)[rows][vectors]) {
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j) sums[i][j] = Vector{};
    for (int64_t k = 0; k < pairs.count; ++k, panel += 2 * vectors * WIDTH) {
        __m512i b[vectors];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; ++j) b[j] = _mm512_loadu_si512(panel + 2 * j * WIDTH);
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) {
            int32_t pair;
            memcpy(&pair, a[i] + 2 * k * pairs.step, sizeof pair);
            const __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
            for (int j = 0; j < vectors; ++j)
                sums[i][j] = (Vector)_mm512_dpbf16_ps((__m512)sums[i][j], value, (__m512bh)b[j]);
        }
    }
}

// bfloat16: a row has an even number of values, of which the last may be a zero.
struct Bfloat16 {
    using Value = uint16_t;
    static constexpr bool is_exact = false;
    static constexpr int64_t ROWS_IN_CELL = 2;

    static INLINE int64_t padded(int64_t count) { return count + (count & 1); }
    static INLINE Pairs depth(int64_t length) { return {parts(length, 2), 1}; }
    static INLINE Pairs cells(int64_t count, int64_t step) { return {count, step}; }

    static INLINE __m256i round(Vector value) { return (__m256i)_mm512_cvtneps_pbh((__m512)value); }

    static INLINE void put(uint16_t* to, Vector value, int64_t lanes) {
        _mm256_mask_storeu_epi16(to, first_lanes(smaller(WIDTH, lanes)), round(value));
    }

    static INLINE void round_row(const float* from, int64_t count, uint16_t* to) {
        for (int64_t k = 0; k < count; k += WIDTH) put(to + k, load(from + k, count - k), count - k);
        if (count & 1) to[count] = 0;
    }

    // A panel[k][vector][lane] of float32 as panel[pair][vector][lane][2].
    static INLINE void pack(const float* panel, int64_t length, uint16_t* to) {
        for (int64_t k = 0; k < length; k += 2)
            for (int j = 0; j < VECTORS; ++j, to += 2 * WIDTH) {
                const float* rows[] = {panel + k * PANEL, k + 1 < length ? panel + (k + 1) * PANEL : nullptr};
                const Vector cells = merge(rows, j * WIDTH, WIDTH);
                memcpy(to, &cells, sizeof cells);
            }
    }

    static INLINE Vector merge(const float* const* rows, int64_t column, int64_t lanes) {
        const __m512i low = _mm512_cvtepu16_epi32(round(Float32::merge(rows, column, lanes)));
        const __m512i high = _mm512_cvtepu16_epi32(round(Float32::merge(rows + 1, column, lanes)));
        return (Vector)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }
};

#endif

}  // namespace KERNELS
