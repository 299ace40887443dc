// How a call is cut up: valid rows, stretches of steps, groups of the context, and each thread's share.
#pragma once

#include <cstdlib>

#include "call.h"
#include "product.h"
#include "threads.h"

namespace KERNELS {

constexpr int64_t ROWS_AT_ONCE = 1400;         // rows of a stretch: its buffers are used again by the next
constexpr int64_t WORK_OF_A_THREAD = 1 << 20;  // multiplications that are worth another thread
constexpr int64_t WORK_OF_A_STEP = 1 << 16;    // multiplications of a step that are worth a barrier
constexpr int64_t SMALL_MATRIX = 1 << 17;      // elements that every core can keep for itself

class Buffer {
public:
    explicit Buffer(int64_t count) {
        if (posix_memalign(reinterpret_cast<void**>(&data_), 64, 4 * static_cast<size_t>(count) + 64)) abort();
    }
    ~Buffer() { free(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    float* data() { return data_; }

private:
    float* data_ = nullptr;
};

// Which steps of which columns are valid. Columns are ranked from the longest to the shortest, so that at
// every step the valid ones are the first ranks.
class Rows {
public:
    explicit Rows(const Call& call) : steps(call.steps), batch(call.batch), ragged_(call.lengths != nullptr) {
        if (!ragged_) return;
        column_ = static_cast<int64_t*>(malloc(sizeof(int64_t) * (2 * batch + steps + 1 + steps * batch)));
        if (column_ == nullptr) abort();
        length_ = column_ + batch;
        first_ = length_ + batch;
        row_ = first_ + steps + 1;
        for (int64_t b = 0; b < batch; ++b) {  // a stable insertion sort: usually sorted already
            int64_t rank = b;
            for (; rank > 0 && length_[rank - 1] < call.lengths[b]; --rank) {
                length_[rank] = length_[rank - 1];
                column_[rank] = column_[rank - 1];
            }
            length_[rank] = call.lengths[b];
            column_[rank] = b;
        }
        int64_t count = 0, valid = batch;
        for (int64_t t = 0; t < steps; ++t) {
            first_[t] = count;
            while (valid > 0 && length_[valid - 1] <= t) --valid;
            for (int64_t rank = 0; rank < valid; ++rank) row_[count++] = t * batch + column_[rank];
        }
        first_[steps] = count;
    }
    ~Rows() { free(column_); }
    Rows(const Rows&) = delete;
    Rows& operator=(const Rows&) = delete;

    bool ragged() const { return ragged_; }
    INLINE int64_t column(int64_t rank) const { return ragged_ ? column_[rank] : rank; }
    INLINE int64_t length(int64_t rank) const { return ragged_ ? length_[rank] : steps; }
    INLINE int64_t valid(int64_t t) const { return ragged_ ? first_[t + 1] - first_[t] : batch; }
    INLINE int64_t before(int64_t t) const { return ragged_ ? first_[t] : t * batch; }  // valid rows before step t
    INLINE int64_t row(int64_t index) const { return ragged_ ? row_[index] : index; }

    const int64_t steps, batch;

private:
    bool ragged_;
    int64_t *column_ = nullptr, *length_ = nullptr, *first_ = nullptr, *row_ = nullptr;
};

// Steps that are worked on together.
struct Stretch {
    int64_t begin, end;  // steps
};

// The groups of the context. Groups narrower than a vector are taken together, with zeros between them.
struct Groups {
    explicit Groups(const Call& call)
        : hidden(call.hidden),
          own(call.hidden / call.groups),
          width(own * smaller(call.groups, larger(1, WIDTH / own))),
          count(parts(hidden, width)) {}

    INLINE int64_t begin(int64_t group) const { return group * width; }
    INLINE int64_t size(int64_t group) const { return smaller(width, hidden - group * width); }

    int64_t hidden;
    int64_t own;    // units of a group
    int64_t width;  // units of as many as are taken together
    int64_t count;
};

// Units of a group that one panel serves.
struct Units {
    int64_t group, begin, count;  // begin is counted from the first unit of the layer
};

// The panels of all groups, each of up to `size` units.
struct Panels {
    Panels(const Groups& groups, int64_t size)
        : groups(groups), size(size), per_group(parts(groups.width, size)), count(groups.count * per_group) {}

    INLINE Units operator[](int64_t panel) const {
        const int64_t group = panel / per_group, offset = panel % per_group * size;
        return {group, groups.begin(group) + offset, larger(0, smaller(size, groups.size(group) - offset))};
    }

    const Groups groups;
    int64_t size, per_group, count;
};

// A thread's part of the recurrence.
struct Part {
    int64_t panel_begin, panel_end, rank_begin, rank_end;
    bool meets;  // whether threads have to wait for each other at every step
};

inline Part part_of(const Panels& panels, int64_t batch, int64_t thread, int64_t threads) {
    const Groups& groups = panels.groups;
    if (threads > 1 && groups.count % threads == 0) {
        const Share share(groups.count, thread, threads);
        return {share.begin * panels.per_group, share.end * panels.per_group, 0, batch, false};
    }
    const int64_t matrix = 4 * groups.hidden * groups.own;
    if (matrix <= SMALL_MATRIX && batch >= 2 * threads) {
        const Share share(batch, thread, threads);
        return {0, panels.count, share.begin, share.end, false};
    }
    if (threads > 1 && matrix * batch < WORK_OF_A_STEP * threads)
        return {0, thread == 0 ? panels.count : 0, 0, batch, false};
    const Share share(panels.count, thread, threads);
    return {share.begin, share.end, 0, batch, threads > 1};
}

inline int64_t useful_threads(const Call& call) {
    const int64_t per_row = 4 * call.hidden * ((call.levels ? call.features : 0) + call.hidden / call.groups);
    const int64_t work = call.steps * call.batch * per_row;
    return larger(1, smaller(call.threads, work / WORK_OF_A_THREAD));
}

}  // namespace KERNELS
