// The decoder with its cross-entropy. A panel of words is multiplied by all rows, and the exponentials of its
// logits are taken while these are in registers: they are written once, and read once by the backward pass.
//
// The words are divided into parts, one per thread. Every row has a reference in every part, which is
// subtracted from its logits before they are exponentiated: the largest logit of the part's first panel, or
// a later one that is larger by more than HEADROOM.
#pragma once

#include "gradients.h"

namespace KERNELS {

constexpr float HEADROOM = 30.0f;
constexpr float LOWEST = -1e30f;  // stands for minus infinity where infinities must not meet

// The words of a vocabulary in panels of up to PANEL; consecutive panels are a part.
struct Words {
    explicit Words(const DecoderCall& call) : call(call), panels(parts(call.words, PANEL)) {}

    INLINE Share of_part(int64_t part) const { return {panels, part, call.parts}; }
    INLINE int64_t count(int64_t panel) const { return smaller(PANEL, call.words - panel * PANEL); }
    INLINE float* exponentials(int64_t panel) const { return call.exponentials + panel * call.rows * PANEL; }

    const DecoderCall& call;
    const int64_t panels;
};

class DecoderForward {
public:
    explicit DecoderForward(const DecoderCall& call) : call(call), words(call), totals(call.parts * call.rows * WIDTH) {}

    void run(Team& team, int64_t thread) {
        for (int64_t part = thread; part < call.parts; part += team.size) run_part(part);
    }

private:
    struct Row {
        float* reference;
        float* total;  // of WIDTH lanes
    };
    Row row_of(int64_t part, int64_t row) {
        const int64_t at = part * call.rows + row;
        return {call.references + at, totals.data() + at * WIDTH};
    }

    void run_part(int64_t part) {
        for (int64_t row = 0; row < call.rows; ++row) {
            *row_of(part, row).reference = LOWEST;
            store(row_of(part, row).total, Vector{});
        }
        const Share share = words.of_part(part);
        const Blocks blocks(call.rows, ROWS);
        Buffer packed(call.features * PANEL);
        for (int64_t panel = share.begin; panel < share.end; ++panel) {
            const int64_t first = panel * PANEL, count = words.count(panel);
            Vector bias[VECTORS];
            for (int64_t j = 0; j < VECTORS; ++j) {
                const int64_t lanes = larger(0, smaller(WIDTH, count - j * WIDTH));
                const float* weight = call.weight + (first + j * WIDTH) * call.features;
                pack_transposed(weight, lanes, call.features, call.features, packed.data() + j * WIDTH, PANEL);
                bias[j] = load_or(call.bias + first + j * WIDTH, lanes, LOWEST);
            }
            for (int64_t b = 0; b < blocks.count; ++b) {
                const int64_t begin = blocks.begin(b), rows = blocks.begin(b + 1) - begin;
                const float* a[ROWS];
                for (int64_t i = 0; i < rows; ++i) a[i] = call.hidden + (begin + i) * call.features;
                multiply<VECTORS>(rows, a, adjacent(call.features), packed.data(), [&](int i, const Vector* products) {
                    Vector logits[VECTORS];
                    for (int j = 0; j < VECTORS; ++j) logits[j] = products[j] + bias[j];
                    exponentiate(logits, panel, share.begin, begin + i, row_of(part, begin + i));
                });
            }
        }
        for (int64_t row = 0; row < call.rows; ++row)
            call.totals[part * call.rows + row] = sum(load(row_of(part, row).total));
    }

    // The first `count` values, and another one in the lanes behind them.
    static Vector load_or(const float* from, int64_t count, float other) {
        float lanes[WIDTH];
        for (int64_t lane = 0; lane < WIDTH; ++lane) lanes[lane] = lane < count ? from[lane] : other;
        return load(lanes);
    }

    INLINE void exponentiate(const Vector* logits, int64_t panel, int64_t first_panel, int64_t index, Row row) {
        const Vector top = maximum(maximum(logits[0], logits[1]), maximum(logits[2], logits[3]));
        if (any(top > *row.reference + HEADROOM)) raise_reference(top, panel, first_panel, index, row);
        const float reference = *row.reference;
        float* to = call.exponentials ? words.exponentials(panel) + index * PANEL : nullptr;
        Vector total = load(row.total);
        for (int j = 0; j < VECTORS; ++j) {
            const Vector value = exponential(clamp(logits[j] - reference, -87.0f, 87.0f));
            total += value;
            if (to) store(to + j * WIDTH, value);
        }
        store(row.total, total);
        const int64_t target = call.targets[index] - panel * PANEL;
        if (target >= 0 && target < PANEL) {
            float values[PANEL];
            for (int j = 0; j < VECTORS; ++j) store(values + j * WIDTH, logits[j]);
            call.chosen[index] = values[target];
        }
    }

    __attribute__((noinline)) void raise_reference(Vector top, int64_t panel, int64_t first_panel, int64_t index, Row row) {
        float lanes[WIDTH], highest = LOWEST;
        store(lanes, top);
        for (float lane : lanes) highest = lane > highest ? lane : highest;
        const Vector factor = exponential(clamp(fill(*row.reference - highest), -87.0f, 0.0f));
        *row.reference = highest;
        store(row.total, load(row.total) * factor);
        if (!call.exponentials) return;
        for (int64_t before = first_panel; before < panel; ++before) {
            float* values = words.exponentials(before) + index * PANEL;
            for (int j = 0; j < VECTORS; ++j) store(values + j * WIDTH, load(values + j * WIDTH) * factor);
        }
    }

    const DecoderCall& call;
    const Words words;
    Buffer totals;
};

// With E the exponentials (rows, words) and F their factors, so that E·F are the gradients of the logits but
// for the targets: grad_weight = Eᵀ·(F·hidden), grad_bias = Eᵀ·F and grad_hidden = F·(E·weight).
class DecoderBackward {
public:
    explicit DecoderBackward(const DecoderCall& call)
        : call(call),
          words(call),
          panels(parts(call.features, PANEL)),
          width(panels * PANEL),
          sums(call.grad_hidden ? call.parts * call.rows * call.features : 0) {}

    void run(Team& team, int64_t thread) {
        for (int64_t part = thread; part < call.parts; part += team.size) run_part(part);
        if (!call.grad_hidden) return;
        team.wait();
        const Share rows(call.rows, thread, team.size);
        for (int64_t row = rows.begin; row < rows.end; ++row) sum_parts(row);
    }

private:
    void run_part(int64_t part) {
        const float* factors = call.factors + part * call.rows;
        const Share share = words.of_part(part);
        Buffer scaled(call.grad_weight ? call.rows * width : 0);  // F·hidden: panels of columns, each of all rows
        Buffer weights(call.grad_hidden ? PANEL * width : 0);
        if (call.grad_weight) pack_scaled(factors, scaled.data());
        for (int64_t panel = share.begin; panel < share.end; ++panel) {
            if (call.grad_weight) weight_gradient(panel, scaled.data());
            if (call.grad_bias) bias_gradient(panel, factors);
            if (call.grad_hidden)
                hidden_gradient(panel, weights.data(), sums.data() + part * call.rows * call.features,
                                panel > share.begin);
        }
        subtract_targets(share);
    }

    void pack_scaled(const float* factors, float* to) {
        for (int64_t n = 0; n < call.features; n += PANEL) {
            const int64_t columns = smaller(PANEL, call.features - n), vectors = vectors_of(columns);
            float* panel = to + n * call.rows;
            for (int64_t row = 0; row < call.rows; ++row, panel += vectors * WIDTH) {
                pack_columns(call.hidden + row * call.features + n, columns, vectors, panel);
                for (int64_t j = 0; j < vectors; ++j)
                    store(panel + j * WIDTH, load(panel + j * WIDTH) * factors[row]);
            }
        }
    }

    void weight_gradient(int64_t panel, const float* scaled) {
        const float* values = words.exponentials(panel);
        const Blocks blocks(words.count(panel), ROWS);
        for (int64_t n = 0; n < call.features; n += PANEL) {
            const int64_t columns = smaller(PANEL, call.features - n);
            for (int64_t b = 0; b < blocks.count; ++b) {
                const int64_t begin = blocks.begin(b), count = blocks.begin(b + 1) - begin;
                const float* a[ROWS];
                for (int64_t i = 0; i < count; ++i) a[i] = values + begin + i;
                float* to = call.grad_weight + (panel * PANEL + begin) * call.features + n;
                multiply_columns(columns, count, a, Depth{1, call.rows, 0, PANEL}, scaled + n * call.rows,
                                 [&](int i, const Vector* products, int vectors) {
                                     put_row(to + i * call.features, products, vectors, columns, false);
                                 });
            }
        }
    }

    void bias_gradient(int64_t panel, const float* factors) {
        const float* values = words.exponentials(panel);
        Vector totals[VECTORS] = {};
        for (int64_t row = 0; row < call.rows; ++row)
            for (int j = 0; j < VECTORS; ++j) totals[j] += load(values + row * PANEL + j * WIDTH) * factors[row];
        put_row(call.grad_bias + panel * PANEL, totals, vectors_of(words.count(panel)), words.count(panel), false);
    }

    void hidden_gradient(int64_t panel, float* packed, float* to, bool add) {
        const float* values = words.exponentials(panel);
        const int64_t count = words.count(panel);
        const Blocks blocks(call.rows, ROWS);
        for (int64_t n = 0; n < call.features; n += PANEL) {
            const int64_t columns = smaller(PANEL, call.features - n), vectors = vectors_of(columns);
            for (int64_t word = 0; word < count; ++word)
                pack_columns(call.weight + (panel * PANEL + word) * call.features + n, columns, vectors,
                             packed + word * vectors * WIDTH);
            for (int64_t b = 0; b < blocks.count; ++b) {
                const int64_t begin = blocks.begin(b), rows = blocks.begin(b + 1) - begin;
                const float* a[ROWS];
                for (int64_t i = 0; i < rows; ++i) a[i] = values + (begin + i) * PANEL;
                multiply_columns(columns, rows, a, adjacent(count), packed, [&](int i, const Vector* products, int size) {
                    put_row(to + (begin + i) * call.features + n, products, size, columns, add);
                });
            }
        }
    }

    // What is left of the gradients of weight and bias: minus one for the target of every row.
    void subtract_targets(const Share& share) {
        const int64_t begin = share.begin * PANEL, end = share.end * PANEL;
        for (int64_t row = 0; row < call.rows; ++row) {
            const int64_t target = call.targets[row];
            if (target < begin || target >= end) continue;
            if (call.grad_bias) call.grad_bias[target] -= call.grads[row];
            if (call.grad_weight)
                add_row(call.hidden + row * call.features, -call.grads[row], call.grad_weight + target * call.features);
        }
    }

    void sum_parts(int64_t row) {
        float* to = call.grad_hidden + row * call.features;
        memset(to, 0, sizeof(float) * call.features);
        for (int64_t part = 0; part < call.parts; ++part) {
            const int64_t at = part * call.rows + row;
            add_row(sums.data() + at * call.features, call.factors[at], to);
        }
        add_row(call.weight + call.targets[row] * call.features, -call.grads[row], to);
    }

    INLINE void add_row(const float* from, float factor, float* to) {
        for (int64_t n = 0; n < call.features; n += WIDTH) {
            const int64_t lanes = smaller(WIDTH, call.features - n);
            store(to + n, load(to + n, lanes) + load(from + n, lanes) * factor, lanes);
        }
    }

    const DecoderCall& call;
    const Words words;
    const int64_t panels, width;  // of the features
    Buffer sums;
};

template <typename Pass>
inline void run_decoder(const DecoderCall& call) {
    Pass pass(call);
    run_in_parallel(smaller(call.threads, call.parts), [](void* context, Team& team, int64_t thread) {
        static_cast<Pass*>(context)->run(team, thread);
    }, &pass);
}

}  // namespace KERNELS
