// The products of the backward pass that are not part of the recurrence: gradients of the input and weights.
#pragma once

#include "input.h"

namespace KERNELS {

constexpr int64_t CACHED = 3 << 16;           // elements of a panel that a core keeps close
constexpr int64_t BLOCK = 8 * ROWS;           // rows of a weight gradient that share one pass over the rows

INLINE int64_t vectors_of(int64_t columns) { return parts(columns, WIDTH); }

// multiply for 1 to VECTORS vectors, which finish is told.
template <typename Finish>
INLINE void multiply_columns(int64_t columns, int64_t rows, const float* const* a, Depth depth, const float* panel,
                             Finish finish) {
    switch (vectors_of(columns)) {
        case 1: return multiply<1>(rows, a, depth, panel, [&](int i, const Vector* sums) { finish(i, sums, 1); });
        case 2: return multiply<2>(rows, a, depth, panel, [&](int i, const Vector* sums) { finish(i, sums, 2); });
        case 3: return multiply<3>(rows, a, depth, panel, [&](int i, const Vector* sums) { finish(i, sums, 3); });
        case 4: return multiply<4>(rows, a, depth, panel, [&](int i, const Vector* sums) { finish(i, sums, 4); });
    }
}

// Writes, or adds to what is there, one row of up to PANEL columns.
INLINE void put_row(float* to, const Vector* sums, int vectors, int64_t columns, bool add) {
    for (int j = 0; j < vectors; ++j) {
        const int64_t lanes = smaller(WIDTH, columns - j * WIDTH);
        Vector value = sums[j];
        if (add) value += load(to + j * WIDTH, lanes);
        store(to + j * WIDTH, value, lanes);
    }
}

// grad_x of the valid rows of a stretch, from the gradients of their gates; pooled views apart.
inline void input_gradient(const Input& input, const Rows& rows, Stretch stretch, const float* grad_gates,
                           float* grad_pooled, int64_t thread, int64_t threads) {
    const Call& call = input.call;
    const int64_t first = rows.before(stretch.begin), total = rows.before(stretch.end) - first;
    const int64_t base = stretch.begin * call.batch, width = 4 * call.hidden;
    int64_t work = 0, done = 0, panels = 0;
    for (int64_t s = 0; s < input.count; ++s) {
        const Source source = input.source(s);
        panels += parts(source.features, PANEL);
        work += source.units * vectors_of(source.features);
    }
    const bool by_rows = panels < 16 * threads;
    const Share share(total, by_rows ? thread : 0, by_rows ? threads : 1);
    if (share.begin == share.end) return;
    const Blocks blocks(share.end - share.begin, ROWS);
    int64_t most = 0;
    for (int64_t s = 0; s < input.count; ++s) most = larger(most, input.source(s).units);
    const int64_t gates_at_once = most * PANEL * 4 <= CACHED ? 4 : most * PANEL * 2 <= CACHED ? 2 : 1;
    Buffer panel(gates_at_once * most * PANEL);
    for (int64_t s = 0; s < input.count; ++s) {
        const Source source = input.source(s);
        for (int64_t n = 0; n < source.features; n += PANEL) {
            const int64_t columns = smaller(PANEL, source.features - n), vectors = vectors_of(columns);
            const int64_t owner = done * threads / work;
            done += source.units * vectors;
            if (!by_rows && owner != thread) continue;
            for (int64_t gate = 0; gate < 4; gate += gates_at_once) {
                float* to = panel.data();
                for (int64_t g = gate; g < gate + gates_at_once; ++g)
                    for (int64_t u = 0; u < source.units; ++u, to += vectors * WIDTH)
                        pack_columns(source.level->weight +
                                         (g * source.level->units + source.row + u) * source.features + n,
                                     columns, vectors, to);
                const Depth depth{gates_at_once, source.units, call.hidden, 1};
                for (int64_t b = 0; b < blocks.count; ++b) {
                    const int64_t begin = share.begin + blocks.begin(b);
                    const int64_t count = share.begin + blocks.begin(b + 1) - begin;
                    const float* a[ROWS];
                    for (int64_t i = 0; i < count; ++i)
                        a[i] = grad_gates + (rows.row(first + begin + i) - base) * width + gate * call.hidden + source.unit;
                    multiply_columns(columns, count, a, depth, panel.data(), [&](int i, const Vector* sums, int size) {
                        const int64_t column = source.feature + n;
                        const int64_t row = rows.row(first + begin + i);
                        float* result = source.view == 0
                            ? call.grad_x + row * call.features + column
                            : grad_pooled + (begin + i) * input.pooled_width + input.offset_of_view(source.view) + column;
                        put_row(result, sums, size, columns, gate > 0);
                        if (!call.residual || source.view > 0 || gate > 0) return;
                        for (int g = 0; g < 4; ++g) {
                            const float* direct = grad_gates + (row - base) * width + g * call.hidden + column;
                            for (int j = 0; j < size; ++j) {
                                const int64_t lanes = smaller(WIDTH, columns - j * WIDTH);
                                float* at = result + j * WIDTH;
                                store(at, load(at, lanes) + load(direct + j * WIDTH, lanes), lanes);
                            }
                        }
                    });
                }
            }
        }
    }
}

// Adds the gradients of pooled views to those of the views that they come from, up to grad_x.
inline void unpool_rows(const Input& input, const Rows& rows, Stretch stretch, float* grad_pooled, int64_t thread,
                        int64_t threads) {
    const Call& call = input.call;
    const int64_t first = rows.before(stretch.begin);
    const Share share(rows.before(stretch.end) - first, thread, threads);
    for (int64_t position = share.begin; position < share.end; ++position) {
        float* views = grad_pooled + position * input.pooled_width;
        for (int64_t k = call.levels - 1; k >= 1; --k) {
            float* above = k == 1 ? call.grad_x + rows.row(first + position) * call.features
                                  : views + input.offset_of_view(k - 1);
            unpool(views + input.offset_of_view(k), call.features >> (k - 1), call.level[k].window, above);
        }
    }
}

// One factor of a weight gradient: for every valid row of a stretch `columns` adjacent values, as panels.
struct Factor {
    int64_t columns;
    float* panels;

    INLINE int64_t count() const { return parts(columns, PANEL); }
    INLINE float* panel(int64_t index, int64_t depth) const { return panels + index * PANEL * depth; }
};

template <typename Row>
INLINE void pack_factor(const Factor& factor, int64_t depth, int64_t begin, int64_t end, Row row) {
    for (int64_t index = 0; index < factor.count(); ++index) {
        const int64_t columns = smaller(PANEL, factor.columns - index * PANEL), vectors = vectors_of(columns);
        float* panel = factor.panel(index, depth);
        for (int64_t k = begin; k < end; ++k) {
            const float* from = row(k);
            float* to = panel + k * vectors * WIDTH;
            if (from) pack_columns(from + index * PANEL, columns, vectors, to);
            else memset(to, 0, sizeof(float) * vectors * WIDTH);
        }
    }
}

// A block of a weight gradient: rows of `to` belong to columns of grad_gates, its columns to a factor.
struct Block {
    int64_t gate_column;  // the first of grad_gates
    int64_t rows;
    Factor factor;
    float* to;
};

inline void weight_gradient(const Block& block, const Rows& rows, Stretch stretch, int64_t batch, int64_t width,
                            const float* grad_gates, bool add, float* scratch) {
    const int64_t first = rows.before(stretch.begin), depth = rows.before(stretch.end) - first;
    const int64_t base = stretch.begin * batch;
    const Blocks blocks(block.rows, ROWS);
    for (int64_t b = 0; b < blocks.count; ++b) {
        const int64_t begin = blocks.begin(b), count = blocks.begin(b + 1) - begin;
        float* to = scratch + begin * depth;
        for (int64_t k = 0; k < depth; ++k, to += count) {
            const float* from = grad_gates + (rows.row(first + k) - base) * width + block.gate_column + begin;
            store(to, load(from, count), count);
        }
    }
    for (int64_t p = 0; p < block.factor.count(); ++p) {
        const int64_t columns = smaller(PANEL, block.factor.columns - p * PANEL);
        for (int64_t b = 0; b < blocks.count; ++b) {
            const int64_t begin = blocks.begin(b), count = blocks.begin(b + 1) - begin;
            const float* a[ROWS];
            for (int64_t i = 0; i < count; ++i) a[i] = scratch + begin * depth + i;
            multiply_columns(columns, count, a, Depth{1, depth, 0, count}, block.factor.panel(p, depth),
                             [&](int i, const Vector* sums, int vectors) {
                                 float* row = block.to + (begin + i) * block.factor.columns + p * PANEL;
                                 put_row(row, sums, vectors, columns, add);
                             });
        }
    }
}

}  // namespace KERNELS
