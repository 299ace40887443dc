// The input transform: every level's product with its view of the input, and the pooling between views.
#pragma once

#include "format.h"
#include "plan.h"

namespace KERNELS {

// One group of one level: units of every gate, and the features that they read.
struct Source {
    const Level* level;
    int64_t view;       // of the level: 0 is the input itself
    int64_t unit;       // first unit, counted from the first of the layer
    int64_t units;
    int64_t row;        // first row of the weight, for the first gate
    int64_t feature;    // first feature of the view
    int64_t features;   // also the length of a row of the weight
};

class Input {
public:
    explicit Input(const Call& call) : call(call), count(call.levels * call.input_groups) {
        int64_t width = 0;
        for (int64_t k = 1; k < call.levels; ++k) width += call.features >> k;
        pooled_width = width;
    }

    INLINE Source source(int64_t index) const {
        const int64_t view = index / call.input_groups, group = index % call.input_groups;
        const Level* level = call.level + view;
        int64_t unit = 0;
        for (int64_t k = 0; k < view; ++k) unit += call.level[k].units;
        const int64_t units = level->units / call.input_groups;
        const int64_t features = (call.features >> view) / call.input_groups;
        return {level, view, unit + group * units, units, group * units, group * features, features};
    }

    // Where a view of a row begins: in the input, or in the buffer of pooled rows of a stretch.
    INLINE const float* row_of_view(int64_t view, int64_t row, int64_t position, const float* pooled) const {
        if (view == 0) return call.x + row / call.batch * call.x_step + row % call.batch * call.x_column;
        return pooled + position * pooled_width + offset_of_view(view);
    }

    INLINE int64_t offset_of_view(int64_t view) const {  // in a row of pooled views
        int64_t offset = 0;
        for (int64_t k = 1; k < view; ++k) offset += call.features >> k;
        return offset;
    }

    const Call& call;
    int64_t count;         // of sources
    int64_t pooled_width;  // features of all views below the input
};

// to[i] = average of from[2i - e … 2i + e], zeros outside: n features to n / 2.
INLINE void pool(const float* from, int64_t n, int64_t window, float* to) {
    const int64_t e = window / 2, half = n / 2;
    const float share = 1.0f / static_cast<float>(window);
    if (window == 3) {
        to[0] = (from[0] + (n > 1 ? from[1] : 0.0f)) * share;
        for (int64_t i = 1; i < half; ++i) to[i] = (from[2 * i - 1] + from[2 * i] + from[2 * i + 1]) * share;
        return;
    }
    for (int64_t i = 0; i < half; ++i) {
        float total = 0.0f;
        for (int64_t j = larger(0, 2 * i - e); j <= smaller(n - 1, 2 * i + e); ++j) total += from[j];
        to[i] = total * share;
    }
}

// The transpose of pool, added to what is there.
INLINE void unpool(const float* grad, int64_t n, int64_t window, float* to) {
    const int64_t e = window / 2, half = n / 2;
    const float share = 1.0f / static_cast<float>(window);
    if (window == 3) {
        for (int64_t i = 0; i + 1 < half; ++i) {
            to[2 * i] += grad[i] * share;
            to[2 * i + 1] += (grad[i] + grad[i + 1]) * share;
        }
        to[n - 2] += grad[half - 1] * share;
        to[n - 1] += grad[half - 1] * share;
        return;
    }
    for (int64_t i = 0; i < half; ++i)
        for (int64_t j = larger(0, 2 * i - e); j <= smaller(n - 1, 2 * i + e); ++j) to[j] += grad[i] * share;
}

// All pooled views of the valid rows of a stretch; `position` counts these rows.
inline void pool_rows(const Input& input, const Rows& rows, Stretch stretch, float* pooled, int64_t thread, int64_t threads) {
    if (input.pooled_width == 0) return;
    const Call& call = input.call;
    const int64_t first = rows.before(stretch.begin);
    const Share share(rows.before(stretch.end) - first, thread, threads);
    for (int64_t position = share.begin; position < share.end; ++position) {
        const float* from = input.row_of_view(0, rows.row(first + position), position, pooled);
        float* to = pooled + position * input.pooled_width;
        for (int64_t k = 1; k < call.levels; ++k) {
            pool(from, call.features >> (k - 1), call.level[k].window, to);
            from = to;
            to += call.features >> k;
        }
    }
}

// The rows of a stretch as a format has them, read source by source; `position` counts the valid rows.
template <typename Format>
class FormattedRows;

template <>
class FormattedRows<Float32> {  // nothing is copied
public:
    FormattedRows(const Input& input, int64_t) : input_(input) {}

    static constexpr bool are_copies = false;
    void copy(const Rows&, Stretch, const float*, int64_t, int64_t) {}
    INLINE const float* row(int64_t index, int64_t row, int64_t position, const float* pooled) const {
        const Source source = input_.source(index);
        return input_.row_of_view(source.view, row, position, pooled) + source.feature;
    }

private:
    const Input& input_;
};

#if defined(__AVX512BF16__)
template <>
class FormattedRows<Bfloat16> {  // the features of one source after another
public:
    FormattedRows(const Input& input, int64_t rows)
        : input_(input), width_(offset(input.count)), buffer_((rows * width_ + 1) / 2) {}

    static constexpr bool are_copies = true;
    void copy(const Rows& rows, Stretch stretch, const float* pooled, int64_t thread, int64_t threads) {
        const int64_t first = rows.before(stretch.begin);
        const Share share(rows.before(stretch.end) - first, thread, threads);
        uint16_t* to = data() + share.begin * width_;
        for (int64_t position = share.begin; position < share.end; ++position)
            for (int64_t index = 0; index < input_.count; ++index) {
                const Source source = input_.source(index);
                const float* from = input_.row_of_view(source.view, rows.row(first + position), position, pooled);
                Bfloat16::round_row(from + source.feature, source.features, to);
                to += Bfloat16::padded(source.features);
            }
    }

    INLINE const uint16_t* row(int64_t index, int64_t, int64_t position, const float*) {
        return data() + position * width_ + offset(index);
    }

private:
    uint16_t* data() { return reinterpret_cast<uint16_t*>(buffer_.data()); }
    int64_t offset(int64_t index) const {
        int64_t total = 0;
        for (int64_t s = 0; s < index; ++s) total += Bfloat16::padded(input_.source(s).features);
        return total;
    }

    const Input& input_;
    const int64_t width_;
    Buffer buffer_;
};
#endif

// Up to ROWS valid rows of a stretch, and where one source reads them.
template <typename Format>
struct RowBlock {
    int64_t count;
    int64_t row[ROWS];
    const typename Format::Value* a[ROWS];

    INLINE RowBlock(FormattedRows<Format>& formatted, const Rows& rows, int64_t source, const float* pooled,
                    int64_t first, int64_t begin, int64_t end)
        : count(end - begin) {
        for (int64_t i = 0; i < count; ++i) {
            row[i] = rows.row(first + begin + i);
            a[i] = formatted.row(source, row[i], begin + i, pooled);
        }
    }
};

// Writes the gates of one row for up to WIDTH units: products, bias and residual.
INLINE void put_gates(const Call& call, const Vector* sums, int64_t row, int64_t unit, int64_t count, float* gates) {
    Vector residual{};
    if (call.residual)
        residual = load(call.x + row / call.batch * call.x_step + row % call.batch * call.x_column + unit, count);
    for (int gate = 0; gate < 4; ++gate) {
        Vector value = sums[gate] + residual;
        if (call.bias) value += load(call.bias + gate * call.hidden + unit, count);
        if (call.second_bias) value += load(call.second_bias + gate * call.hidden + unit, count);
        store(gates + gate * call.hidden + unit, value, count);
    }
}

// The gates of all valid rows of a stretch. A panel is packed and used at once by the thread that packed it.
template <typename Format>
inline void input_gates(const Input& input, const Rows& rows, FormattedRows<Format>& formatted, Stretch stretch,
                        const float* pooled, float* gates, int64_t thread, int64_t threads) {
    const Call& call = input.call;
    const int64_t first = rows.before(stretch.begin), total = rows.before(stretch.end) - first;
    const int64_t base = stretch.begin * call.batch, width = 4 * call.hidden;
    if (call.levels == 0) {  // they are given
        const Share share(total, thread, threads);
        for (int64_t index = share.begin; index < share.end; ++index) {
            const int64_t row = rows.row(first + index);
            const float* from = input.row_of_view(0, row, index, pooled);
            float* to = gates + (row - base) * width;
            for (int64_t u = 0; u < width; u += WIDTH) {
                const int64_t lanes = smaller(WIDTH, width - u);
                Vector value = load(from + u, lanes);
                if (call.bias) value += load(call.bias + u, lanes);
                if (call.second_bias) value += load(call.second_bias + u, lanes);
                store(to + u, value, lanes);
            }
        }
        return;
    }
    int64_t panels = 0, work = 0, done = 0;
    for (int64_t s = 0; s < input.count; ++s) {
        const Source source = input.source(s);
        panels += parts(source.units, WIDTH);
        work += parts(source.units, WIDTH) * source.features;
    }
    const bool by_rows = panels < 16 * threads;
    const Share share(total, by_rows ? thread : 0, by_rows ? threads : 1);
    if (share.begin == share.end) return;
    const Blocks blocks(share.end - share.begin, ROWS);
    Buffer panel(call.features * PANEL), other(Format::is_exact ? 0 : (call.features + 1) / 2 * PANEL);
    auto* packed = reinterpret_cast<typename Format::Value*>(Format::is_exact ? panel.data() : other.data());
    for (int64_t s = 0; s < input.count; ++s) {
        const Source source = input.source(s);
        const int64_t gate_stride = source.level->units * source.features;
        for (int64_t u = 0; u < source.units; u += WIDTH) {
            const int64_t owner = done * threads / work;
            done += source.features;
            if (!by_rows && owner != thread) continue;
            const int64_t lanes = smaller(WIDTH, source.units - u), unit = source.unit + u;
            const float* weight = source.level->weight + (source.row + u) * source.features;
            for (int gate = 0; gate < 4; ++gate)
                pack_transposed(weight + gate * gate_stride, lanes, source.features, source.features,
                                panel.data() + gate * WIDTH, PANEL);
            Format::pack(panel.data(), source.features, packed);
            for (int64_t b = 0; b < blocks.count; ++b) {
                const RowBlock<Format> block(formatted, rows, s, pooled, first, share.begin + blocks.begin(b),
                                             share.begin + blocks.begin(b + 1));
                multiply<4>(block.count, block.a, Format::depth(source.features), packed,
                            [&](int i, const Vector* sums) {
                                put_gates(call, sums, block.row[i], unit, lanes, gates + (block.row[i] - base) * width);
                            });
            }
        }
    }
}

// sums[gate][lane] of one row for up to WIDTH units, from matrices that are read as they lie.
template <typename Row>
INLINE void dot_units(const float* weight, int64_t gate_stride, int64_t lanes, int64_t length, Row row, Vector* sums) {
    float values[4][WIDTH] = {};
    for (int64_t lane = 0; lane < lanes; ++lane) {
        const float* x[1] = {row(lane)};
        float y[4][1];
        dot<4, 1>(weight + lane * length, gate_stride, x, length, y);
        for (int gate = 0; gate < 4; ++gate) values[gate][lane] = y[gate][0];
    }
    for (int gate = 0; gate < 4; ++gate) sums[gate] = load(values[gate]);
}

// As input_gates, for so few rows that packing does not pay.
inline void input_gates_of_few(const Input& input, const Rows& rows, Stretch stretch, const float* pooled, float* gates,
                               int64_t thread, int64_t threads) {
    const Call& call = input.call;
    const int64_t first = rows.before(stretch.begin), total = rows.before(stretch.end) - first;
    const int64_t base = stretch.begin * call.batch;
    for (int64_t s = 0; s < input.count; ++s) {
        const Source source = input.source(s);
        const Share share(parts(source.units, WIDTH), thread, threads);
        for (int64_t u = share.begin * WIDTH; u < smaller(source.units, share.end * WIDTH); u += WIDTH) {
            const int64_t lanes = smaller(WIDTH, source.units - u);
            const float* weight = source.level->weight + (source.row + u) * source.features;
            for (int64_t index = 0; index < total; ++index) {
                const int64_t row = rows.row(first + index);
                const float* a = input.row_of_view(source.view, row, index, pooled) + source.feature;
                Vector sums[4];
                dot_units(weight, source.level->units * source.features, lanes, source.features,
                          [&](int64_t) { return a; }, sums);
                put_gates(call, sums, row, source.unit + u, lanes, gates + (row - base) * 4 * call.hidden);
            }
        }
    }
}

}  // namespace KERNELS
