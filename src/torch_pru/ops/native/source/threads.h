// A team of threads on PyTorch's own OpenMP pool.
//
// The library is not linked with an OpenMP runtime: it is given the functions of the one that PyTorch has
// loaded, so that both share one pool. A call starts its team once; inside, threads meet at barriers that
// spin for a moment and then yield.
#pragma once

#include <atomic>
#include <cstdint>

class Team {
public:
    explicit Team(int64_t size) : size(size) {}

    void wait() {  // until every thread of the team is here
        if (size == 1) return;
        int64_t round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) pause(spins);
    }

    int64_t size;

private:
    static void pause(int spins);

    std::atomic<int64_t> arrived_{0}, round_{0};
};

// Runs work(context, team, thread) on up to `threads` threads of one team.
using Work = void (*)(void* context, Team& team, int64_t thread);
void run_in_parallel(int64_t threads, Work work, void* context);
