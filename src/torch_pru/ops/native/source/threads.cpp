#include "threads.h"

#include <pthread.h>
#include <sched.h>

namespace {

using Region = void (*)(void (*)(void*), void*, unsigned, unsigned);

Region start_region = nullptr;  // GOMP_parallel
int (*thread_number)() = nullptr;
int (*team_size)() = nullptr;
std::atomic<bool> busy{false};
bool forked = false;

struct Job {
    Work work;
    void* context;
    Team team;
    std::atomic<bool> sized;
};

// A runtime may start fewer threads than it was asked for.
void run_member(void* argument) {
    Job* job = static_cast<Job*>(argument);
    int thread = thread_number();
    if (thread == 0) {
        job->team.size = team_size();
        job->sized.store(true, std::memory_order_release);
    } else {
        while (!job->sized.load(std::memory_order_acquire)) sched_yield();
    }
    job->work(job->context, job->team, thread);
}

void after_fork() {  // the threads of an OpenMP pool do not survive a fork
    forked = true;
    busy = false;
}

}  // namespace

void Team::pause(int spins) {
    if (spins > 4000) sched_yield();
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#endif
}

void run_in_parallel(int64_t threads, Work work, void* context) {
    // Where several Python threads call at once, one of them gets a team: more would compete for the cores.
    if (threads < 2 || forked || start_region == nullptr || busy.exchange(true)) {
        Team alone(1);
        work(context, alone, 0);
        return;
    }
    Job job{work, context, Team(1), {false}};
    start_region(run_member, &job, static_cast<unsigned>(threads), 0);
    busy = false;
}

extern "C" __attribute__((visibility("default"))) void pru_set_runtime(void* region, void* number, void* size) {
    if (start_region == nullptr) pthread_atfork(nullptr, nullptr, after_fork);
    thread_number = reinterpret_cast<int (*)()>(number);
    team_size = reinterpret_cast<int (*)()>(size);
    start_region = reinterpret_cast<Region>(region);
}
