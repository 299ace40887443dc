// The backward pass of a layer.
#pragma once

#include "gradients.h"

namespace KERNELS {

template <typename Format>
class Backward {
public:
    explicit Backward(const Call& call, int64_t threads)
        : call(call),
          rows(call),
          input(call),
          panels(Groups(call), panel_units(Groups(call))),
          steps_at_once(larger(1, smaller(call.steps, ROWS_AT_ONCE / larger(1, call.batch)))),
          panel_size(4 * panels.groups.width * PANEL),
          rows_at_once(steps_at_once * call.batch),
          packed(panels.count * panel_size),
          grad_h(call.batch * call.hidden),
          grad_c(call.batch * call.hidden),
          grad_gates(call.levels ? rows_at_once * 4 * call.hidden : 0),
          grad_bias(threads * 4 * call.hidden),
          pooled(rows_at_once * input.pooled_width),
          grad_pooled(rows_at_once * input.pooled_width),
          gate_rows(input, wants_input() ? rows_at_once : 0),
          input_panels(wants_input_weights() ? rows_at_once * input_columns() : 0),
          context_panels(call.grad_context ? rows_at_once * context_columns() : 0) {}

    void run(Team& team, int64_t thread) {
        const Part part = part_of(panels, call.batch, thread, team.size);
        const Share mine(panels.count, thread, team.size);
        for (int64_t panel = mine.begin; panel < mine.end; ++panel) pack(panel);
        const Share columns(call.batch, thread, team.size);
        for (int64_t rank = columns.begin; rank < columns.end; ++rank) start(rank);
        float* bias = grad_bias.data() + thread * 4 * call.hidden;
        memset(bias, 0, sizeof(float) * 4 * call.hidden);
        team.wait();
        const int64_t stretches = parts(call.steps, steps_at_once);
        for (int64_t index = 0; index < stretches; ++index) {  // against the order of the forward pass
            const int64_t at = (call.reverse ? index : stretches - 1 - index) * steps_at_once;
            const Stretch stretch{at, smaller(call.steps, at + steps_at_once)};
            float* z = call.levels ? grad_gates.data() : call.grad_x + at * call.batch * 4 * call.hidden;
            for (int64_t i = stretch.begin; i < stretch.end; ++i) {
                const int64_t t = call.reverse ? i : stretch.begin + stretch.end - 1 - i;
                step(t, z + (t - at) * call.batch * 4 * call.hidden, part, team, bias);
            }
            products(stretch, z, team, thread, index > 0);
            team.wait();
        }
        for (int64_t rank = columns.begin; rank < columns.end; ++rank) finish(rank);
        if (call.grad_bias && thread == 0) sum_bias(team.size);
    }

private:
    // Narrow panels where that gives every thread some.
    static int64_t panel_units(const Groups& groups) { return groups.width >= 8 * WIDTH ? PANEL : WIDTH; }

    bool wants_input() const { return call.levels && call.grad_x; }
    bool wants_input_weights() const { return call.levels && call.level[0].grad_weight; }
    int64_t padded(int64_t columns) const { return parts(columns, PANEL) * PANEL; }
    int64_t context_columns() const { return call.groups * padded(panels.groups.own); }
    int64_t input_columns() const {
        int64_t total = 0;
        for (int64_t s = 0; s < input.count; ++s) total += padded(input.source(s).features);
        return total;
    }

    // The context's weights for grad_h: rows are units of all gates, columns the units that they read.
    void pack(int64_t panel) {
        const Groups& groups = panels.groups;
        const Units units = panels[panel];
        if (units.count == 0) return;
        const int64_t vectors = vectors_of(units.count), begin = groups.begin(units.group);
        float* to = packed.data() + panel * panel_size;
        for (int gate = 0; gate < 4; ++gate)
            for (int64_t k = 0; k < groups.size(units.group); ++k, to += vectors * WIDTH) {
                const int64_t group = (begin + k) / groups.own * groups.own;  // first unit of the row's group
                const float* row = call.context + (gate * call.hidden + begin + k) * groups.own;
                if (groups.width == groups.own) {
                    pack_columns(row + units.begin - begin, units.count, vectors, to);
                    continue;
                }
                memset(to, 0, sizeof(float) * vectors * WIDTH);
                for (int64_t j = 0; j < groups.own; ++j) {
                    const int64_t column = group + j - units.begin;
                    if (column >= 0 && column < units.count) to[column] = row[j];
                }
            }
    }

    void start(int64_t rank) {
        const int64_t size = call.hidden, column = rows.column(rank);
        copy_or_zero(call.grad_hn, column, grad_h.data() + rank * size);
        copy_or_zero(call.grad_cn, column, grad_c.data() + rank * size);
        if (!call.grad_x) return;
        const int64_t width = call.levels ? call.features : 4 * size;
        for (int64_t t = rows.length(rank); t < call.steps; ++t)
            memset(call.grad_x + (t * call.batch + column) * width, 0, sizeof(float) * width);
    }

    void copy_or_zero(const float* from, int64_t column, float* to) {
        const size_t bytes = sizeof(float) * static_cast<size_t>(call.hidden);
        if (from) memcpy(to, from + column * call.hidden, bytes);
        else memset(to, 0, bytes);
    }

    void finish(int64_t rank) {
        const int64_t size = call.hidden, column = rows.column(rank);
        const size_t bytes = sizeof(float) * static_cast<size_t>(size);
        if (call.grad_h0) memcpy(call.grad_h0 + column * size, grad_h.data() + rank * size, bytes);
        if (call.grad_c0) memcpy(call.grad_c0 + column * size, grad_c.data() + rank * size, bytes);
    }

    void sum_bias(int64_t threads) {
        for (int64_t u = 0; u < 4 * call.hidden; ++u) {
            float total = 0.0f;
            for (int64_t thread = 0; thread < threads; ++thread) total += grad_bias.data()[thread * 4 * call.hidden + u];
            call.grad_bias[u] = total;
        }
    }

    void step(int64_t t, float* z, const Part& part, Team& team, float* bias) {
        const int64_t end = smaller(part.rank_end, rows.valid(t));
        for (int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
            const Units units = panels[panel];
            for (int64_t u = 0; u < units.count; u += WIDTH)
                gate(t, z, part.rank_begin, end, units.begin + u, smaller(WIDTH, units.count - u), bias);
        }
        if (part.meets) team.wait();
        const bool last = !rows.ragged() && t == (call.reverse ? call.steps - 1 : 0);
        if (part.rank_begin >= end || (last && !call.grad_h0)) return;
        const Blocks blocks(end - part.rank_begin, ROWS);
        for (int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
            const Units units = panels[panel];
            if (units.count == 0) continue;
            const Depth depth{4, panels.groups.size(units.group), call.hidden, 1};
            for (int64_t b = 0; b < blocks.count; ++b) {
                const int64_t rank = part.rank_begin + blocks.begin(b);
                const int64_t count = part.rank_begin + blocks.begin(b + 1) - rank;
                const float* a[ROWS];
                for (int64_t i = 0; i < count; ++i)
                    a[i] = z + rows.column(rank + i) * 4 * call.hidden + panels.groups.begin(units.group);
                multiply_columns(units.count, count, a, depth, packed.data() + panel * panel_size,
                                 [&](int i, const Vector* sums, int vectors) {
                                     put_row(grad_h.data() + (rank + i) * call.hidden + units.begin, sums, vectors,
                                             units.count, false);
                                 });
            }
        }
    }

    // The gates of up to WIDTH units at one step: writes grad_gates and moves grad_c one step back.
    INLINE void gate(int64_t t, float* z, int64_t begin, int64_t end, int64_t unit, int64_t lanes, float* bias) {
        const int64_t size = call.hidden;
        Vector sums[4] = {};
        for (int64_t rank = begin; rank < end; ++rank) {
            const int64_t column = rows.column(rank), row = t * call.batch + column;
            const float* saved = call.activations + row * 4 * size + unit;
            const Vector i = load(saved, lanes), f = load(saved + size, lanes);
            const Vector g = load(saved + 2 * size, lanes), o = load(saved + 3 * size, lanes);
            const Vector tanh_c = tanh(load(call.cells + row * size + unit, lanes));
            const float* cell_before = state_before(call.cells, call.c0, t, rank, column);
            const Vector c_before = cell_before ? load(cell_before + unit, lanes) : Vector{};
            Vector grad = load(grad_h.data() + rank * size + unit, lanes);
            if (call.grad_out)
                grad += load(call.grad_out + t * call.grad_out_step + column * call.grad_out_column + unit, lanes);
            float* cell = grad_c.data() + rank * size + unit;
            const Vector grad_cell = load(cell, lanes) + grad * o * (1.0f - tanh_c * tanh_c);
            const Vector grads[4] = {grad_cell * g * i * (1.0f - i), grad_cell * c_before * f * (1.0f - f),
                                     grad_cell * i * (1.0f - g * g), grad * tanh_c * o * (1.0f - o)};
            store(cell, grad_cell * f, lanes);
            float* to = z + column * 4 * size + unit;
            for (int k = 0; k < 4; ++k) {
                store(to + k * size, grads[k], lanes);
                sums[k] += grads[k];
            }
        }
        for (int k = 0; k < 4; ++k) {
            float* at = bias + k * size + unit;
            store(at, load(at, lanes) + sums[k], lanes);
        }
    }

    // The row of a saved state before step t: of the step before, of the first state, or null for zeros.
    INLINE const float* state_before(const float* saved, const float* first, int64_t t, int64_t rank, int64_t column) {
        const bool is_first = call.reverse ? t == rows.length(rank) - 1 : t == 0;
        if (is_first) return first ? first + column * call.hidden : nullptr;
        return saved + ((call.reverse ? t + 1 : t - 1) * call.batch + column) * call.hidden;
    }

    // What is left of a stretch when the gradients of its gates are known.
    void products(Stretch stretch, const float* z, Team& team, int64_t thread, bool add) {
        const int64_t first = rows.before(stretch.begin), depth = rows.before(stretch.end) - first;
        const Cells<Format> cells{depth};
        const Share share(cells.count(), thread, team.size);
        if (wants_input_weights()) pool_rows(input, rows, stretch, pooled.data(), thread, team.size);
        team.wait();  // here are pooled rows and gradients of gates that others have made
        if (wants_input_weights())
            for_factors(cells.count(), [&](const Source& source, const Factor& factor) {
                pack_factor(factor, cells, share.begin, share.end, [&](int64_t k) {
                    return input.row_of_view(source.view, rows.row(first + k), k, pooled.data()) + source.feature;
                });
            });
        if (call.grad_context) pack_states(stretch, cells, share);
        if (wants_input()) gate_rows.copy(z, rows, stretch, thread, team.size);
        team.wait();
        if (wants_input()) input_gradient(input, rows, stretch, z, gate_rows, grad_pooled.data(), thread, team.size);
        weight_gradients(stretch, z, cells.count(), thread, team.size, add);
        if (call.grad_x && input.pooled_width) {
            team.wait();
            unpool_rows(input, rows, stretch, grad_pooled.data(), thread, team.size);
        }
    }

    template <typename Use>
    void for_factors(int64_t cells, Use use) {
        float* panel = input_panels.data();
        for (int64_t s = 0; s < input.count; ++s) {
            const Source source = input.source(s);
            use(source, Factor{source.features, panel});
            panel += padded(source.features) * cells;
        }
    }

    Factor states_of_group(int64_t group, int64_t cells) {
        const int64_t own = panels.groups.own;
        return {own, context_panels.data() + group * padded(own) * cells};
    }

    void pack_states(Stretch stretch, Cells<Format> cells, const Share& share) {
        const int64_t first = rows.before(stretch.begin);
        for (int64_t group = 0; group < call.groups; ++group)
            pack_factor(states_of_group(group, cells.count()), cells, share.begin, share.end,
                        [&](int64_t k) -> const float* {
                const int64_t row = rows.row(first + k), t = row / call.batch;
                const int64_t rank = first + k - rows.before(t);
                const float* state = state_before(call.out, call.h0, t, rank, row % call.batch);
                return state ? state + group * panels.groups.own : nullptr;
            });
    }

    void weight_gradients(Stretch stretch, const float* z, int64_t cells, int64_t thread, int64_t threads, bool add) {
        int64_t work = 0, done = 0;
        auto count = [&](const Block& block) { work += block.rows * vectors_of(block.factor.columns); };
        for_blocks(cells, count);
        if (work == 0) return;
        Buffer scratch(BLOCK * cells);
        for_blocks(cells, [&](const Block& block) {
            const int64_t owner = done * threads / work;
            done += block.rows * vectors_of(block.factor.columns);
            if (owner == thread)
                weight_gradient<Format>(block, rows, stretch, call.batch, 4 * call.hidden, z, add, scratch.data());
        });
    }

    template <typename Use>
    void for_blocks(int64_t cells, Use use) {
        const int64_t own = panels.groups.own;
        if (call.grad_context)
            for (int64_t group = 0; group < call.groups; ++group)
                for (int64_t gate = 0; gate < 4; ++gate) {
                    const int64_t row = gate * call.hidden + group * own;
                    cut({row, own, states_of_group(group, cells), call.grad_context + row * own}, use);
                }
        if (wants_input_weights())
            for_factors(cells, [&](const Source& source, const Factor& factor) {
                for (int64_t gate = 0; gate < 4; ++gate) {
                    const int64_t row = gate * source.level->units + source.row;
                    cut({gate * call.hidden + source.unit, source.units, factor,
                         source.level->grad_weight + row * source.features}, use);
                }
            });
    }

    template <typename Use>
    static void cut(const Block& whole, Use use) {
        const Blocks blocks(whole.rows, BLOCK);
        for (int64_t b = 0; b < blocks.count; ++b) {
            const int64_t begin = blocks.begin(b);
            use(Block{whole.gate_column + begin, blocks.begin(b + 1) - begin, whole.factor,
                      whole.to + begin * whole.factor.columns});
        }
    }

    const Call& call;
    const Rows rows;
    const Input input;
    const Panels panels;
    const int64_t steps_at_once, panel_size, rows_at_once;
    Buffer packed, grad_h, grad_c, grad_gates, grad_bias, pooled, grad_pooled;
    GateRows<Format> gate_rows;
    Buffer input_panels, context_panels;
};

template <typename Format>
inline void backward(const Call& call) {
    const int64_t threads = useful_threads(call);
    Backward<Format> pass(call, threads);
    run_in_parallel(threads, [](void* context, Team& team, int64_t thread) {
        static_cast<Backward<Format>*>(context)->run(team, thread);
    }, &pass);
}

}  // namespace KERNELS
