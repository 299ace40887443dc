// The products of the backward pass that are not part of the recurrence: gradients of the input and weights.
#pragma once

#include "input.h"

namespace KERNELS {

constexpr int64_t CACHED = 3 << 16;           // elements of a panel that a core keeps close
constexpr int64_t BLOCK = 8 * ROWS;           // rows of a weight gradient that share one pass over the rows

INLINE int64_t vectors_of(int64_t columns) { return parts(columns, WIDTH); }

// multiply for 1 to VECTORS vectors, which finish is told.
template <typename Value, typename Length, typename Finish>
INLINE void multiply_columns(int64_t columns, int64_t rows, const Value* const* a, Length depth, const Value* panel,
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

// Rows as the cells of a format.
template <typename Format>
struct Cells {
    int64_t rows;

    INLINE int64_t count() const { return parts(rows, Format::ROWS_IN_CELL); }

    // The rows of a cell; null stands for those that the last one has too many.
    template <typename Row>
    INLINE void rows_of(int64_t cell, Row row, const float** to) const {
        for (int64_t i = 0; i < Format::ROWS_IN_CELL; ++i) {
            const int64_t k = cell * Format::ROWS_IN_CELL + i;
            to[i] = k < rows ? row(k) : nullptr;
        }
    }
};

// One row of up to PANEL columns of cells, as the vectors of a panel.
template <typename Format>
INLINE void pack_cells(const float* const* rows, int64_t column, int64_t columns, float* to) {
    for (int64_t j = 0; j < columns; j += WIDTH) store(to + j, Format::merge(rows, column + j, columns - j));
}

// The gradients of the gates of a stretch as a format has them, read source by source.
template <typename Format>
class GateRows;

template <>
class GateRows<Float32> {  // nothing is copied
public:
    GateRows(const Input& input, int64_t) : hidden_(input.call.hidden) {}

    void copy(const float*, const Rows&, Stretch, int64_t, int64_t) {}
    INLINE const float* row(const Source& source, int64_t, int64_t gate, const float* gates, int64_t) const {
        return gates + gate * hidden_ + source.unit;
    }
    INLINE Depth depth(const Source& source, int64_t gates) const { return {gates, source.units, hidden_, 1}; }

private:
    const int64_t hidden_;
};

#if defined(__AVX512BF16__)
template <>
class GateRows<Bfloat16> {  // all gates of one source after another
public:
    GateRows(const Input& input, int64_t rows)
        : input_(input), width_(offset(input.count)), buffer_((rows * width_ + 1) / 2) {}

    void copy(const float* gates, const Rows& rows, Stretch stretch, int64_t thread, int64_t threads) {
        const Call& call = input_.call;
        const int64_t first = rows.before(stretch.begin), base = stretch.begin * call.batch;
        const Share share(rows.before(stretch.end) - first, thread, threads);
        uint16_t* to = data() + share.begin * width_;
        for (int64_t position = share.begin; position < share.end; ++position)
            for (int64_t index = 0; index < input_.count; ++index) {
                const Source source = input_.source(index);
                const float* from = gates + (rows.row(first + position) - base) * 4 * call.hidden + source.unit;
                for (int gate = 0; gate < 4; ++gate, to += Bfloat16::padded(source.units))
                    Bfloat16::round_row(from + gate * call.hidden, source.units, to);
            }
    }

    INLINE const uint16_t* row(const Source& source, int64_t index, int64_t gate, const float*, int64_t position) {
        return data() + position * width_ + offset(index) + gate * Bfloat16::padded(source.units);
    }
    INLINE Pairs depth(const Source& source, int64_t gates) const {
        return Bfloat16::depth(gates * Bfloat16::padded(source.units));
    }

private:
    uint16_t* data() { return reinterpret_cast<uint16_t*>(buffer_.data()); }
    int64_t offset(int64_t index) const {
        int64_t total = 0;
        for (int64_t s = 0; s < index; ++s) total += 4 * Bfloat16::padded(input_.source(s).units);
        return total;
    }

    const Input& input_;
    const int64_t width_;
    Buffer buffer_;
};
#endif

// grad_x of the valid rows of a stretch, from the gradients of their gates; pooled views apart.
template <typename Format>
inline void input_gradient(const Input& input, const Rows& rows, Stretch stretch, const float* grad_gates,
                           GateRows<Format>& formatted, float* grad_pooled, int64_t thread, int64_t threads) {
    using Value = typename Format::Value;
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
    for (int64_t s = 0; s < input.count; ++s) most = larger(most, Cells<Format>{input.source(s).units}.count());
    const int64_t gates_at_once = most * PANEL * 4 <= CACHED ? 4 : most * PANEL * 2 <= CACHED ? 2 : 1;
    Buffer panel(gates_at_once * most * PANEL);
    for (int64_t s = 0; s < input.count; ++s) {
        const Source source = input.source(s);
        const Cells<Format> units{source.units};
        for (int64_t n = 0; n < source.features; n += PANEL) {
            const int64_t columns = smaller(PANEL, source.features - n), vectors = vectors_of(columns);
            const int64_t owner = done * threads / work;
            done += source.units * vectors;
            if (!by_rows && owner != thread) continue;
            for (int64_t gate = 0; gate < 4; gate += gates_at_once) {
                float* to = panel.data();
                for (int64_t g = gate; g < gate + gates_at_once; ++g) {
                    const int64_t first_row = g * source.level->units + source.row;
                    const float* weight = source.level->weight + first_row * source.features;
                    for (int64_t cell = 0; cell < units.count(); ++cell, to += vectors * WIDTH) {
                        const float* from[Format::ROWS_IN_CELL];
                        units.rows_of(cell, [&](int64_t u) { return weight + u * source.features; }, from);
                        pack_cells<Format>(from, n, columns, to);
                    }
                }
                for (int64_t b = 0; b < blocks.count; ++b) {
                    const int64_t begin = share.begin + blocks.begin(b);
                    const int64_t count = share.begin + blocks.begin(b + 1) - begin;
                    const Value* a[ROWS];
                    for (int64_t i = 0; i < count; ++i) {
                        const float* gates = grad_gates + (rows.row(first + begin + i) - base) * width;
                        a[i] = formatted.row(source, s, gate, gates, begin + i);
                    }
                    const auto* packed = reinterpret_cast<const Value*>(panel.data());
                    multiply_columns(columns, count, a, formatted.depth(source, gates_at_once), packed,
                                     [&](int i, const Vector* sums, int size) {
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

// One factor of a weight gradient: for every cell of a stretch `columns` adjacent ones, as panels.
struct Factor {
    int64_t columns;
    float* panels;

    INLINE int64_t count() const { return parts(columns, PANEL); }
    INLINE float* panel(int64_t index, int64_t cells) const { return panels + index * PANEL * cells; }
};

template <typename Format, typename Row>
INLINE void pack_factor(const Factor& factor, Cells<Format> cells, int64_t begin, int64_t end, Row row) {
    for (int64_t index = 0; index < factor.count(); ++index) {
        const int64_t columns = smaller(PANEL, factor.columns - index * PANEL), vectors = vectors_of(columns);
        float* panel = factor.panel(index, cells.count());
        for (int64_t cell = begin; cell < end; ++cell) {
            const float* from[Format::ROWS_IN_CELL];
            cells.rows_of(cell, row, from);
            pack_cells<Format>(from, index * PANEL, columns, panel + cell * vectors * WIDTH);
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

template <typename Format>
inline void weight_gradient(const Block& block, const Rows& rows, Stretch stretch, int64_t batch, int64_t width,
                            const float* grad_gates, bool add, float* scratch) {
    using Value = typename Format::Value;
    const int64_t first = rows.before(stretch.begin), base = stretch.begin * batch;
    const Cells<Format> cells{rows.before(stretch.end) - first};
    const Blocks blocks(block.rows, ROWS);
    for (int64_t b = 0; b < blocks.count; ++b) {
        const int64_t begin = blocks.begin(b), count = blocks.begin(b + 1) - begin;
        float* to = scratch + begin * cells.count();
        for (int64_t cell = 0; cell < cells.count(); ++cell, to += count) {
            const float* from[Format::ROWS_IN_CELL];
            cells.rows_of(cell, [&](int64_t k) { return grad_gates + (rows.row(first + k) - base) * width; }, from);
            store(to, Format::merge(from, block.gate_column + begin, count), count);
        }
    }
    for (int64_t p = 0; p < block.factor.count(); ++p) {
        const int64_t columns = smaller(PANEL, block.factor.columns - p * PANEL);
        for (int64_t b = 0; b < blocks.count; ++b) {
            const int64_t begin = blocks.begin(b), count = blocks.begin(b + 1) - begin;
            const auto* panel = reinterpret_cast<const Value*>(block.factor.panel(p, cells.count()));
            const Value* a[ROWS];
            for (int64_t i = 0; i < count; ++i)
                a[i] = reinterpret_cast<const Value*>(scratch + begin * cells.count() + i);
            multiply_columns(columns, count, a, Format::cells(cells.count(), count), panel,
                             [&](int i, const Vector* sums, int vectors) {
                                 float* row = block.to + (begin + i) * block.factor.columns + p * PANEL;
                                 put_row(row, sums, vectors, columns, add);
                             });
        }
    }
}

}  // namespace KERNELS
