// The arguments of one call, as Python packs them: 64-bit integers, pointers and flags alike.
//
// Matrices are float32 and row-major. Units of a gate are adjacent: a row of gates is (4, hidden), in the
// order input, forget, cell, output. A "row" is one column of the batch at one step: row = step * batch +
// column.
#pragma once

#include <cstdint>

struct Level {
    const float* weight;  // (4 * units, features of the level / input_groups), gate-major
    float* grad_weight;   // the same shape, or null
    int64_t units;
    int64_t window;       // of the average pooling from the level above; 1 takes every second feature
};

struct Call {
    int64_t threads;
    int64_t steps, batch, features, hidden;
    int64_t groups;        // of the context
    int64_t input_groups;  // of every level
    int64_t residual;      // add the input to every gate
    int64_t reverse;       // run from the last step to the first
    int64_t bfloat16;      // factors of products may be rounded to bfloat16

    // With levels = 0 there is no input transform: x holds the gates (steps, batch, 4 * hidden).
    const float* x;
    int64_t x_step, x_column;  // strides, in elements; features are adjacent
    const float* context;      // (4 * hidden, hidden / groups), gate-major
    const float* bias;         // (4 * hidden,) or null
    const float* second_bias;  // added to the other; (4 * hidden,) or null
    const float* h0;           // (batch, hidden) or null, which stands for zeros
    const float* c0;
    const int64_t* lengths;    // (batch,) or null: every step is valid

    float* out;          // (steps, batch, hidden)
    float* hn;           // (batch, hidden)
    float* cn;
    float* activations;  // (steps, batch, 4, hidden) or null: nothing is saved for the backward pass
    float* cells;        // (steps, batch, hidden) or null

    // For the backward pass: null stands for a gradient of zero, or for one that is not wanted.
    const float* grad_out;
    int64_t grad_out_step, grad_out_column;
    const float* grad_hn;
    const float* grad_cn;
    float* grad_x;        // (steps, batch, features), or (steps, batch, 4 * hidden) with levels = 0
    float* grad_context;  // as context
    float* grad_bias;
    float* grad_h0;
    float* grad_c0;

    int64_t levels;
    Level level[];
};

// A decoder with its cross-entropy, for rows of hidden and their targets.
struct DecoderCall {
    int64_t threads;
    int64_t parts;  // of the words, at most one per panel; each has a reference and a total of its own
    int64_t rows, features, words;
    const float* hidden;     // (rows, features)
    const float* weight;     // (words, features)
    const float* bias;       // (words,)
    const int64_t* targets;  // (rows,), below words

    // Of the forward pass.
    float* references;    // (parts, rows): what is subtracted from the logits
    float* totals;        // (parts, rows): sums of exponentials
    float* chosen;        // (rows,): logits of the targets
    float* exponentials;  // rows * (words, rounded up to 64), by panels of words; or null

    // Of the backward pass, which reads the exponentials.
    const float* factors;  // (parts, rows): an exponential times this is the gradient of its logit
    const float* grads;    // (rows,): of the losses
    float* grad_hidden;    // null stands for one that is not wanted
    float* grad_weight;
    float* grad_bias;
};

// So few rows that packing a matrix takes longer than the product.
inline bool is_few(const Call& call) { return call.steps * call.batch <= 6; }
