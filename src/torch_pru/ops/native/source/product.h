// Small products in registers: a few rows of A by a panel of B, the building block of every other product.
//
// A panel holds up to VECTORS vectors of columns of B for all k: panel[k][vector][lane], so that the inner
// loop reads it from front to back. A row of A is read one value at a time, at any stride.
#pragma once

#include "vector.h"

namespace KERNELS {

constexpr int VECTORS = 4;                  // vectors in a full panel: one per gate, or 4 * WIDTH columns
constexpr int ROWS = WIDTH == 16 ? 7 : 3;   // rows of A at a time: as many sums as there are registers
constexpr int PANEL = VECTORS * WIDTH;

// The k of a product in pieces of equal length: piece s of row i starts at a[i] + s * stride.
struct Depth {
    int64_t pieces, length, stride;  // of A, in elements
    int64_t step;                    // from one k to the next in a row of A
};

INLINE Depth adjacent(int64_t length) { return {1, length, 0, 1}; }

template <int rows, int vectors>
INLINE void multiply(const float* const* a, Depth depth, const float* panel, Vector (&sums)[rows][vectors]) {
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j) sums[i][j] = Vector{};
    for (int64_t piece = 0; piece < depth.pieces; ++piece) {
        const float* from[rows];
        for (int i = 0; i < rows; ++i) from[i] = a[i] + piece * depth.stride;
        for (int64_t k = 0, at = 0; k < depth.length; ++k, at += depth.step) {
            Vector b[vectors];
#pragma GCC unroll 8
            for (int j = 0; j < vectors; ++j) b[j] = load(panel + j * WIDTH);
#pragma GCC unroll 8
            for (int i = 0; i < rows; ++i) {
                Vector value = fill(from[i][at]);
#pragma GCC unroll 8
                for (int j = 0; j < vectors; ++j) sums[i][j] += value * b[j];
            }
            panel += vectors * WIDTH;
        }
    }
}

// Calls finish(i, sums of row i) for every row of a; `rows` is 1 to ROWS.
template <int vectors, typename Value, typename Length, typename Finish>
INLINE void multiply(int64_t rows, const Value* const* a, Length depth, const Value* panel, Finish finish) {
#define CASE(count)                                                  \
    case count: {                                                    \
        Vector sums[count][vectors];                                 \
        multiply<count, vectors>(a, depth, panel, sums);             \
        for (int i = 0; i < count; ++i) finish(i, sums[i]);          \
        return;                                                      \
    }
    switch (rows) {
        CASE(1)
        CASE(2)
        CASE(3)
#if WIDTH == 16
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
#endif
    }
#undef CASE
}

// A range cut into blocks of nearly equal size, none larger than `most`.
struct Blocks {
    int64_t total, count;
    Blocks(int64_t total, int64_t most) : total(total), count(parts(total, most)) {}
    INLINE int64_t begin(int64_t block) const { return total * block / count; }
};

// What thread `thread` of a team does of `total` pieces of work.
struct Share {
    int64_t begin, end;
    Share(int64_t total, int64_t thread, int64_t threads)
        : begin(total * thread / threads), end(total * (thread + 1) / threads) {}
};

// A square of values, transposed in log2(WIDTH) rounds that exchange ever larger blocks.
template <int distance>
INLINE void exchange(Vector (&rows)[WIDTH]) {
    Integers low, high;
    for (int lane = 0; lane < WIDTH; ++lane) {  // lanes of the second vector are counted from WIDTH
        low[lane] = lane & distance ? WIDTH + lane - distance : lane;
        high[lane] = lane & distance ? WIDTH + lane : lane + distance;
    }
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; ++i) {
        if (i & distance) continue;
        const Vector a = rows[i], b = rows[i + distance];
        rows[i] = __builtin_shuffle(a, b, low);
        rows[i + distance] = __builtin_shuffle(a, b, high);
    }
}

INLINE void transpose(Vector (&rows)[WIDTH]) {
    exchange<1>(rows);
    exchange<2>(rows);
#if WIDTH >= 8
    exchange<4>(rows);
#endif
#if WIDTH >= 16
    exchange<8>(rows);
#endif
}

// Rows (columns of the result, `count` of them, `stride` apart) turned into one vector of every k of a panel.
INLINE void pack_transposed(
    const float* rows, int64_t count, int64_t stride, int64_t length, float* to, int64_t to_step) {
    for (int64_t k = 0; k < length; k += WIDTH) {
        const int64_t lanes = smaller(WIDTH, length - k);
        Vector square[WIDTH];
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; ++i) square[i] = i < count ? load(rows + i * stride + k, lanes) : Vector{};
        transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; ++i)
            if (i < lanes) store(to + (k + i) * to_step, square[i]);
    }
}

// Columns begin … begin + count of rows that are `stride` apart, as the vectors of a panel.
INLINE void pack_columns(const float* row, int64_t count, int64_t vectors, float* to) {
    for (int64_t j = 0; j < vectors; ++j)
        store(to + j * WIDTH, load(row + j * WIDTH, larger(0, smaller(WIDTH, count - j * WIDTH))));
}

// A few rows by a matrix whose rows are read as they lie: y[r][i] = sum over k of w[i][k] * x[r][k].
// For one token: to pack the matrix would take longer than the product.
template <int rows, int columns>
INLINE void dot(const float* w, int64_t w_stride, const float* const* x, int64_t length, float (&y)[rows][columns]) {
    Vector sums[rows][columns];
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < columns; ++j) sums[i][j] = Vector{};
    for (int64_t k = 0; k < length; k += WIDTH) {
        const int64_t count = smaller(WIDTH, length - k);
        Vector value[columns];
#pragma GCC unroll 8
        for (int j = 0; j < columns; ++j) value[j] = load(x[j] + k, count);
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) {
            Vector weight = load(w + i * w_stride + k, count);
#pragma GCC unroll 8
            for (int j = 0; j < columns; ++j) sums[i][j] += weight * value[j];
        }
    }
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < columns; ++j) y[i][j] = sum(sums[i][j]);
}

}  // namespace KERNELS
