// Runs the kernels on random problems of odd sizes, for the sanitizers: without PyTorch and its OpenMP runtime.
//
// Every array has exactly the size that a call may touch. Results of all instruction sets and numbers of
// threads are compared with those of the baseline on one thread; the exit status is 1 if they differ.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "call.h"

extern "C" void pru_forward(const Call*);
extern "C" void pru_backward(const Call*);
extern "C" int64_t pru_decoder_forward(const DecoderCall*);
extern "C" void pru_decoder_backward(const DecoderCall*);
extern "C" int pru_choose_kernels(const char*);
extern "C" void pru_set_runtime(void*, void*, void*);

namespace {

// A runtime of plain threads, which the sanitizers see through.
thread_local int number = 0, size = 1;

void run_region(void (*work)(void*), void* argument, unsigned threads, unsigned) {
    std::vector<std::thread> others;
    for (unsigned t = 1; t < threads; ++t)
        others.emplace_back([=] {
            number = static_cast<int>(t);
            size = static_cast<int>(threads);
            work(argument);
        });
    size = static_cast<int>(threads);
    work(argument);
    size = 1;
    for (std::thread& other : others) other.join();
}

int thread_number() { return number; }
int team_size() { return size; }

using Floats = std::vector<float>;

struct Problem {
    int64_t steps, batch, features, hidden, groups, input_groups, levels, residual, reverse, bfloat16;
    Floats x, context, bias, second_bias, h0, c0, grad_out, grad_hn, grad_cn;
    std::vector<Floats> weights;
    std::vector<int64_t> units, windows, lengths;
};

struct Results {
    Floats out, hn, cn, activations, cells, grad_x, grad_context, grad_bias, grad_h0, grad_c0;
    std::vector<Floats> grad_weights;
};

Problem draw(int seed, bool large) {
    std::mt19937 generator(static_cast<unsigned>(seed));
    auto pick = [&](std::vector<int64_t> values) { return values[generator() % values.size()]; };
    auto values = [&](int64_t count, double scale) {
        Floats numbers(static_cast<size_t>(count));
        for (float& value : numbers) value = static_cast<float>(scale * (generator() % 2001 / 1000.0 - 1));
        return numbers;
    };
    Problem p{};
    const int64_t width = large ? pick({33, 64, 70}) : pick({1, 2, 3, 5, 8, 9, 16, 17, 33});
    p.groups = pick({1, 2, 3, 4});
    p.hidden = width * p.groups;
    p.batch = large ? pick({3, 20}) : pick({1, 2, 3, 8, 13});
    p.steps = large ? pick({30, 100}) : pick({1, 2, 3, 7});
    p.levels = p.hidden >= 8 ? pick({0, 1, 2, 3}) : pick({0, 1});
    p.input_groups = 1;
    p.reverse = pick({0, 1});
    p.bfloat16 = pick({0, 1});
    int64_t left = p.hidden;
    for (int64_t level = p.levels - 1; level >= 0; --level) {
        const int64_t units = level ? (p.hidden >> (level + 1)) : left;
        p.units.insert(p.units.begin(), units);
        left -= units;
        p.windows.insert(p.windows.begin(), level ? pick({1, 3, 5}) : 1);
    }
    p.residual = p.levels && p.hidden % (1 << p.levels) == 0 && pick({0, 1});
    p.features = p.residual ? p.hidden : p.levels ? (int64_t{1} << (p.levels - 1)) * pick({1, 3, 7, 20}) : 4 * p.hidden;
    p.x = values(p.steps * p.batch * p.features, 1);
    p.context = values(4 * p.hidden * width, 1 / std::sqrt(width));
    for (int64_t level = 0; level < p.levels; ++level)
        p.weights.push_back(values(4 * p.units[level] * (p.features >> level), 1 / std::sqrt(p.features)));
    if (pick({0, 1})) p.bias = values(4 * p.hidden, 1);
    if (pick({0, 1})) p.second_bias = values(4 * p.hidden, 1);
    if (pick({0, 1})) p.h0 = values(p.batch * p.hidden, 1);
    if (pick({0, 1})) p.c0 = values(p.batch * p.hidden, 1);
    if (pick({0, 1}))
        for (int64_t b = 0; b < p.batch; ++b) p.lengths.push_back(1 + generator() % p.steps);
    p.grad_out = values(p.steps * p.batch * p.hidden, 1);
    if (pick({0, 1})) p.grad_hn = values(p.batch * p.hidden, 1);
    if (pick({0, 1})) p.grad_cn = values(p.batch * p.hidden, 1);
    return p;
}

template <typename Value>
const Value* or_null(const std::vector<Value>& values) {
    return values.empty() ? nullptr : values.data();
}

Results run(const Problem& p, int64_t threads) {
    const size_t rows = static_cast<size_t>(p.steps * p.batch), hidden = static_cast<size_t>(p.hidden);
    const size_t state = static_cast<size_t>(p.batch) * hidden;
    const float unset = std::nanf("");
    Results r;
    r.out.assign(rows * hidden, unset);
    r.cells = r.out;
    r.activations.assign(rows * 4 * hidden, unset);
    r.hn.assign(state, unset);
    r.cn = r.grad_h0 = r.grad_c0 = r.hn;
    r.grad_x.assign(p.x.size(), unset);
    r.grad_context.assign(p.context.size(), unset);
    r.grad_bias.assign(4 * hidden, unset);
    for (const Floats& weight : p.weights) r.grad_weights.emplace_back(weight.size(), unset);

    std::unique_ptr<void, void (*)(void*)> memory(calloc(1, sizeof(Call) + p.weights.size() * sizeof(Level)), free);
    Call& call = *static_cast<Call*>(memory.get());
    call.threads = threads;
    call.steps = p.steps, call.batch = p.batch, call.features = p.features, call.hidden = p.hidden;
    call.groups = p.groups, call.input_groups = p.input_groups;
    call.residual = p.residual, call.reverse = p.reverse, call.bfloat16 = p.bfloat16;
    call.x = p.x.data(), call.x_step = p.batch * p.features, call.x_column = p.features;
    call.context = p.context.data(), call.bias = or_null(p.bias), call.second_bias = or_null(p.second_bias);
    call.h0 = or_null(p.h0), call.c0 = or_null(p.c0), call.lengths = or_null(p.lengths);
    call.out = r.out.data(), call.hn = r.hn.data(), call.cn = r.cn.data();
    call.levels = p.levels;
    for (int64_t level = 0; level < p.levels; ++level)
        call.level[level] = {p.weights[level].data(), nullptr, p.units[level], p.windows[level]};
    pru_forward(&call);  // without what the backward pass needs

    call.activations = r.activations.data(), call.cells = r.cells.data();
    pru_forward(&call);
    call.grad_out = p.grad_out.data(), call.grad_out_step = p.batch * p.hidden, call.grad_out_column = p.hidden;
    call.grad_hn = or_null(p.grad_hn), call.grad_cn = or_null(p.grad_cn);
    call.grad_x = r.grad_x.data(), call.grad_context = r.grad_context.data(), call.grad_bias = r.grad_bias.data();
    call.grad_h0 = r.grad_h0.data(), call.grad_c0 = r.grad_c0.data();
    for (int64_t level = 0; level < p.levels; ++level) call.level[level].grad_weight = r.grad_weights[level].data();
    pru_backward(&call);
    return r;
}

bool agree(const Floats& mine, const Floats& right, double bound) {
    double most = 1e-3, error = 0;
    for (size_t i = 0; i < right.size(); ++i) most = std::fmax(most, std::fabs(right[i]));
    for (size_t i = 0; i < right.size(); ++i) {
        const double difference = std::fabs(static_cast<double>(mine[i]) - right[i]);
        if (!(difference >= 0)) return false;  // NaN: never written
        error = std::fmax(error, difference);
    }
    return error <= bound * most;
}

bool agree(const Results& mine, const Results& right, double bound) {
    bool all = agree(mine.out, right.out, bound) && agree(mine.hn, right.hn, bound) && agree(mine.cn, right.cn, bound) &&
               agree(mine.grad_x, right.grad_x, bound) && agree(mine.grad_context, right.grad_context, bound) &&
               agree(mine.grad_bias, right.grad_bias, bound) && agree(mine.grad_h0, right.grad_h0, bound) &&
               agree(mine.grad_c0, right.grad_c0, bound);
    for (size_t level = 0; level < right.grad_weights.size(); ++level)
        all = all && agree(mine.grad_weights[level], right.grad_weights[level], bound);
    return all;
}

// A decoder with its cross-entropy.
struct Decoder {
    int64_t rows, features, words;
    Floats hidden, weight, bias, grads;
    std::vector<int64_t> targets;
};

struct Gradients {
    Floats losses, hidden, weight, bias;
};

Decoder draw_decoder(int seed) {
    std::mt19937 generator(static_cast<unsigned>(seed));
    auto pick = [&](std::vector<int64_t> values) { return values[generator() % values.size()]; };
    const double size = pick({1, 1, 40});  // of the logits: large ones raise the reference of their row
    auto values = [&](int64_t count, double scale) {
        Floats numbers(static_cast<size_t>(count));
        for (float& value : numbers) value = static_cast<float>(scale * (generator() % 2001 / 1000.0 - 1));
        return numbers;
    };
    Decoder d{};
    d.rows = pick({1, 7, 33, 64}), d.features = pick({1, 3, 16, 17, 65, 130}), d.words = pick({2, 15, 64, 65, 300});
    d.hidden = values(d.rows * d.features, 1);
    d.weight = values(d.words * d.features, size / std::sqrt(d.features));
    d.bias = values(d.words, 1), d.grads = values(d.rows, 1);
    for (int64_t row = 0; row < d.rows; ++row) d.targets.push_back(generator() % d.words);
    return d;
}

Gradients run(const Decoder& d, int64_t threads) {
    const size_t rows = static_cast<size_t>(d.rows), padded = static_cast<size_t>((d.words + 63) / 64 * 64);
    const size_t parts = static_cast<size_t>(std::min(threads, (d.words + 63) / 64));
    const float unset = std::nanf("");
    Floats references(parts * rows, unset), totals(references), factors(references), chosen(rows, unset);
    Floats exponentials(rows * padded, unset);
    Gradients g{chosen, Floats(d.hidden.size(), unset), Floats(d.weight.size(), unset), Floats(d.bias.size(), unset)};
    DecoderCall call{};
    call.threads = threads, call.parts = static_cast<int64_t>(parts);
    call.rows = d.rows, call.features = d.features, call.words = d.words;
    call.hidden = d.hidden.data(), call.weight = d.weight.data(), call.bias = d.bias.data();
    call.targets = d.targets.data();
    call.references = references.data(), call.totals = totals.data(), call.chosen = chosen.data();
    pru_decoder_forward(&call);  // without what the backward pass needs
    call.exponentials = exponentials.data();
    pru_decoder_forward(&call);
    for (size_t row = 0; row < rows; ++row) {
        double highest = -INFINITY, total = 0;
        for (size_t part = 0; part < parts; ++part) highest = std::fmax(highest, references[part * rows + row]);
        for (size_t at = row; at < parts * rows; at += rows) total += totals[at] * std::exp(references[at] - highest);
        for (size_t at = row; at < parts * rows; at += rows)
            factors[at] = static_cast<float>(d.grads[row] * std::exp(references[at] - highest) / total);
        g.losses[row] = static_cast<float>(std::log(total) + highest - chosen[row]);
    }
    call.factors = factors.data(), call.grads = d.grads.data();
    call.grad_hidden = g.hidden.data(), call.grad_weight = g.weight.data(), call.grad_bias = g.bias.data();
    pru_decoder_backward(&call);
    return g;
}

bool agree(const Gradients& mine, const Gradients& right) {
    return agree(mine.losses, right.losses, 1e-4) && agree(mine.hidden, right.hidden, 1e-4) &&
           agree(mine.weight, right.weight, 1e-4) && agree(mine.bias, right.bias, 1e-4);
}

struct Count {
    int runs = 0, failures = 0;
};

// Every instruction set and number of threads, and four calls at once, of which one gets a team.
template <typename Given, typename Agree>
void compare(const Given& problem, int seed, const char* what, Count& count, Agree agree_with) {
    pru_choose_kernels("baseline");
    const auto right = run(problem, 1);
    for (const char* name : {"baseline", "avx2", "avx512", "avx512bf16"}) {
        if (!pru_choose_kernels(name)) continue;
        for (int64_t threads : {1, 2, 4}) {
            ++count.runs;
            if (agree_with(run(problem, threads), right)) continue;
            ++count.failures;
            fprintf(stderr, "%s %d differs: %s, %d threads\n", what, seed, name, static_cast<int>(threads));
        }
    }
    std::vector<std::thread> callers;
    std::vector<decltype(run(problem, 1))> results(4);
    for (auto& result : results) callers.emplace_back([&problem, &result] { result = run(problem, 2); });
    for (std::thread& caller : callers) caller.join();
    for (const auto& result : results) count.failures += !agree_with(result, right);
}

}  // namespace

int main() {
    pru_set_runtime(reinterpret_cast<void*>(run_region), reinterpret_cast<void*>(thread_number),
                    reinterpret_cast<void*>(team_size));
    Count count;
    for (int seed = 0; seed < 120; ++seed) {
        const Problem problem = draw(seed, seed % 10 == 9);
        const double bound = problem.bfloat16 ? 3e-2 : 1e-4;
        compare(problem, seed, "layer", count,
                [&](const Results& mine, const Results& right) { return agree(mine, right, bound); });
        compare(draw_decoder(seed), seed, "decoder", count,
                [](const Gradients& mine, const Gradients& right) { return agree(mine, right); });
    }
    printf("%d runs, %d failures\n", count.runs, count.failures);
    return count.failures > 0;
}
