// The forward pass of a layer.
#pragma once

#include "input.h"

namespace KERNELS {

// The context's weights as panels: one vector of WIDTH units for each gate.
INLINE void pack_context(const Call& call, const Panels& panels, int64_t panel, float* to) {
    const Groups& groups = panels.groups;
    const Units units = panels[panel];
    if (units.count == 0) return;
    const int64_t length = groups.size(units.group);
    if (groups.width > groups.own) memset(to, 0, sizeof(float) * length * PANEL);
    for (int64_t u = 0; u < units.count;) {  // stretches of units of one group
        const int64_t unit = units.begin + u, group = unit / groups.own;
        const int64_t count = smaller(units.count - u, (group + 1) * groups.own - unit);
        const int64_t k = group * groups.own - groups.begin(units.group);
        for (int gate = 0; gate < 4; ++gate) {
            const float* rows = call.context + (gate * call.hidden + unit) * groups.own;
            float* vector = to + k * PANEL + gate * WIDTH + u;
            if (groups.width == groups.own) pack_transposed(rows, count, groups.own, groups.own, vector, PANEL);
            else
                for (int64_t lane = 0; lane < count; ++lane)
                    for (int64_t j = 0; j < groups.own; ++j) vector[j * PANEL + lane] = rows[lane * groups.own + j];
        }
        u += count;
    }
}

template <typename Format>
class Forward {
    using Value = typename Format::Value;

public:
    explicit Forward(const Call& call)
        : call(call),
          rows(call),
          input(call),
          panels(Groups(call), WIDTH),
          few(Format::is_exact && is_few(call)),
          steps_at_once(larger(1, smaller(call.steps, ROWS_AT_ONCE / larger(1, call.batch)))),
          group_width(Format::padded(panels.groups.width)),
          state_width(panels.groups.count * group_width),
          panel_size(group_width * PANEL),
          packed(few ? 0 : floats(panels.count * panel_size)),
          formatted(input, steps_at_once * call.batch),
          pooled(steps_at_once * call.batch * input.pooled_width),
          gates(call.activations ? 0 : steps_at_once * call.batch * 4 * call.hidden),
          h(floats(2 * call.batch * state_width)),
          c(call.batch * call.hidden) {}

    void run(Team& team, int64_t thread) {
        const Part part = part_of(panels, call.batch, thread, team.size);
        if (!few) {
            const Share share(panels.count, thread, team.size);
            for (int64_t panel = share.begin; panel < share.end; ++panel) pack(panel);
        }
        const Share columns(call.batch, thread, team.size);
        for (int64_t rank = columns.begin; rank < columns.end; ++rank) start(rank);
        const int64_t stretches = parts(call.steps, steps_at_once);
        for (int64_t index = 0; index < stretches; ++index) {
            const int64_t at = (call.reverse ? stretches - 1 - index : index) * steps_at_once;
            const Stretch stretch{at, smaller(call.steps, at + steps_at_once)};
            float* z = call.activations ? call.activations + at * call.batch * 4 * call.hidden : gates.data();
            pool_rows(input, rows, stretch, pooled.data(), thread, team.size);
            if (input.pooled_width) team.wait();
            formatted.copy(rows, stretch, pooled.data(), thread, team.size);
            if (formatted.are_copies) team.wait();
            if (few && call.levels) input_gates_of_few(input, rows, stretch, pooled.data(), z, thread, team.size);
            else input_gates(input, rows, formatted, stretch, pooled.data(), z, thread, team.size);
            team.wait();
            for (int64_t i = stretch.begin; i < stretch.end; ++i) {
                const int64_t t = call.reverse ? stretch.begin + stretch.end - 1 - i : i;
                step(t, z + (t - at) * call.batch * 4 * call.hidden, part);
                if (part.meets) team.wait();
            }
            if (index + 1 < stretches) team.wait();
        }
    }

private:
    static int64_t floats(int64_t values) { return parts(values * static_cast<int64_t>(sizeof(Value)), 4); }
    Value* state(int64_t parity, int64_t rank) {
        return reinterpret_cast<Value*>(h.data()) + (parity * call.batch + rank) * state_width;
    }
    Value* panel_of(int64_t panel) { return reinterpret_cast<Value*>(packed.data()) + panel * panel_size; }

    void pack(int64_t panel) {
        if constexpr (Format::is_exact) {
            pack_context(call, panels, panel, panel_of(panel));
        } else {
            const Units units = panels[panel];
            if (units.count == 0) return;
            Buffer exact(panels.groups.width * PANEL);
            pack_context(call, panels, panel, exact.data());
            Format::pack(exact.data(), panels.groups.size(units.group), panel_of(panel));
        }
    }

    // Both of the states that take turns start as h0: with lengths, columns begin at different steps.
    void start(int64_t rank) {
        const int64_t size = call.hidden, column = rows.column(rank);
        for (int parity = 0; parity < 2; ++parity) put_state(call.h0 ? call.h0 + column * size : nullptr, state(parity, rank));
        if (call.c0) memcpy(c.data() + rank * size, call.c0 + column * size, sizeof(float) * size);
        else memset(c.data() + rank * size, 0, sizeof(float) * size);
        for (int64_t t = rows.length(rank); t < call.steps; ++t) {
            const int64_t row = t * call.batch + column;
            memset(call.out + row * size, 0, sizeof(float) * size);
            if (!call.activations) continue;
            memset(call.activations + row * 4 * size, 0, sizeof(float) * 4 * size);
            memset(call.cells + row * size, 0, sizeof(float) * size);
        }
    }

    void put_state(const float* from, Value* to) {
        memset(to, 0, sizeof(Value) * state_width);
        if (!from) return;
        const Groups& groups = panels.groups;
        for (int64_t group = 0; group < groups.count; ++group)
            for (int64_t u = 0; u < groups.size(group); u += WIDTH) {
                const int64_t lanes = smaller(WIDTH, groups.size(group) - u);
                Format::put(to + group * group_width + u, load(from + groups.begin(group) + u, lanes), lanes);
            }
    }

    void step(int64_t t, float* z, const Part& part) {
        const int64_t end = smaller(part.rank_end, rows.valid(t));
        if (part.rank_begin >= end) return;
        const int64_t before = t & 1, after = ~t & 1;
        const Blocks blocks(end - part.rank_begin, ROWS);
        const bool from_zero = !call.h0 && !rows.ragged() && t == (call.reverse ? call.steps - 1 : 0);
        for (int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
            const Units units = panels[panel];
            if (units.count == 0) continue;
            const int64_t first = units.group * group_width, length = panels.groups.size(units.group);
            for (int64_t b = 0; b < blocks.count; ++b) {
                const int64_t rank = part.rank_begin + blocks.begin(b);
                const int64_t count = part.rank_begin + blocks.begin(b + 1) - rank;
                auto finish = [&](int i, const Vector* sums) { gate(t, rank + i, units, sums, z, state(after, rank + i)); };
                if (from_zero || few) {
                    for (int64_t i = 0; i < count; ++i) {
                        Vector sums[4] = {};
                        if constexpr (Format::is_exact)
                            if (!from_zero) dot_context(units, state(before, rank + i), sums);
                        finish(static_cast<int>(i), sums);
                    }
                    continue;
                }
                const Value* a[ROWS];
                for (int64_t i = 0; i < count; ++i) a[i] = state(before, rank + i) + first;
                multiply<4>(count, a, Format::depth(length), panel_of(panel), finish);
            }
        }
    }

    void dot_context(const Units& units, const float* before, Vector* sums) {
        const int64_t own = panels.groups.own;
        dot_units(call.context + units.begin * own, call.hidden * own, units.count, own,
                  [&](int64_t lane) { return before + (units.begin + lane) / own * own; }, sums);
    }

    INLINE void gate(int64_t t, int64_t rank, const Units& units, const Vector* sums, float* z, Value* after) {
        const int64_t size = call.hidden, unit = units.begin, lanes = units.count, column = rows.column(rank);
        float* gates = z + column * 4 * size + unit;
        const Vector i = sigmoid(sums[0] + load(gates, lanes));
        const Vector f = sigmoid(sums[1] + load(gates + size, lanes));
        const Vector g = tanh(sums[2] + load(gates + 2 * size, lanes));
        const Vector o = sigmoid(sums[3] + load(gates + 3 * size, lanes));
        float* cell = c.data() + rank * size + unit;
        const Vector now = f * load(cell, lanes) + i * g, hidden = o * tanh(now);
        store(cell, now, lanes);
        const Groups& groups = panels.groups;
        Format::put(after + units.group * group_width + unit - groups.begin(units.group), hidden, lanes);
        const int64_t row = t * call.batch + column;
        store(call.out + row * size + unit, hidden, lanes);
        if (call.activations) {
            store(gates, i, lanes);
            store(gates + size, f, lanes);
            store(gates + 2 * size, g, lanes);
            store(gates + 3 * size, o, lanes);
            store(call.cells + row * size + unit, now, lanes);
        }
        if (t == (call.reverse ? 0 : rows.length(rank) - 1)) {
            store(call.hn + column * size + unit, hidden, lanes);
            store(call.cn + column * size + unit, now, lanes);
        }
    }

    const Call& call;
    const Rows rows;
    const Input input;
    const Panels panels;
    const bool few;
    const int64_t steps_at_once;
    const int64_t group_width, state_width;  // of a state, in values: groups may be padded
    const int64_t panel_size;
    Buffer packed;
    FormattedRows<Format> formatted;
    Buffer pooled, gates, h, c;
};

template <typename Format>
inline void forward(const Call& call) {
    Forward<Format> pass(call);
    run_in_parallel(useful_threads(call), [](void* context, Team& team, int64_t thread) {
        static_cast<Forward<Format>*>(context)->run(team, thread);
    }, &pass);
}

}  // namespace KERNELS
