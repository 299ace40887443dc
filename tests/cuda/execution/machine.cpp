// Runs a kernel on a CPU. The threads of all blocks that run at once are fibers, of which one runs at a time: until it
// waits, and then another one, picked at random. Blocks that do not wait for each other run one after the other.
#include "machine.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

Index threadIdx, blockIdx, gridDim;

namespace {

constexpr size_t STACK = 64 << 10, VARIABLES = 16 << 10, EDGE = 256;
constexpr u8 UNWRITTEN = 0xff, UNTOUCHED = 0xa5;       // shared memory as a block finds it; what lies around it
constexpr u32 MOST_VARIABLES = 16;

struct Thread;
struct Meeting {                                       // of a fixed set of threads
  std::vector<void*> brought;
  std::vector<Thread*> waiting;
  u32 alive = 0, come = 0;
  const char* what = nullptr;
  machine::Act act = nullptr;
  bool whole = false;                                  // also threads that have ended are needed
  void reset(u32 count, bool needs_all) {
    brought.assign(count, nullptr), waiting.clear(), alive = count, come = 0, what = nullptr, whole = needs_all;
  }
};

struct Block {
  Index index;
  u32 rank;
  std::vector<u8> memory;                              // edge, launched bytes, edge, variables
  u8* shared;
  void* variables[MOST_VARIABLES];
  size_t used;
  Meeting all;
  std::vector<Meeting> warps, fours;
};

struct Thread {
  jmp_buf context;
  u32 index, number;                                   // in its block, and among all that run at once
  Block* block;
  bool started = false, ended = false;
  const char* waits_for = nullptr;
  bool (*test)(const void*);
  const void* about;
  std::vector<machine::Later> later;
};

struct Copy { void* to; const void* from; u32 bytes; void (*then)(void*, u32); void* about; };

struct Launch {
  void (*kernel)(const void*);
  const void* argument;
  u32 blocks_x, threads, cluster;
  size_t launched;
} launch;

std::vector<Block> blocks;
std::vector<Thread> threads;
std::vector<Thread*> ready, testing;
std::vector<Copy> copies;
Meeting cluster;
Thread* current;
u32 left;                                              // threads that have not ended
u8* stacks;
size_t stacks_for;
sigjmp_buf outside;
char message[1000];
u64 state;

[[noreturn]] void give_up() { siglongjmp(outside, 2); }

[[noreturn]] void crashed(int signal, siginfo_t*, void*) {
  const char* why = signal == SIGILL ? "an address that is not aligned, or an index outside of an array" : strsignal(signal);
  snprintf(message, sizeof message, "%s, in thread %u of block (%u, %u)", why, threadIdx.x, blockIdx.x, blockIdx.y);
  give_up();
}

[[noreturn]] void report_deadlock() {
  std::map<std::string, u32> counts;
  for (Thread& thread : threads)
    if (!thread.ended) counts[thread.waits_for]++;
  std::string text = "deadlock:";
  for (auto& [what, count] : counts) text += " " + std::to_string(count) + " threads wait for " + what + ",";
  snprintf(message, sizeof message, "%s of %zu", text.c_str(), threads.size());
  give_up();
}

u32 random_below(u32 below) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (u32)((state >> 32) * below >> 32);
}

template <class T> T taken(std::vector<T>& from, u32 place) {
  T value = from[place];
  from[place] = from.back();
  from.pop_back();
  return value;
}

void copy_one() {
  Copy copy = taken(copies, random_below(copies.size()));
  memcpy(copy.to, copy.from, copy.bytes);
  copy.then(copy.about, copy.bytes);
}

void ask(u32 place) {
  if (testing[place]->test(testing[place]->about)) ready.push_back(taken(testing, place));
}

Thread* choose() {
  if (!ready.empty() && random_below(32) == 0) {       // now and then something that is not urgent
    if (!copies.empty()) copy_one();
    else if (!testing.empty()) ask(random_below(testing.size()));
  }
  while (ready.empty()) {
    for (u32 place = testing.size(); place-- > 0;) ask(place);
    if (!ready.empty()) break;
    if (copies.empty()) report_deadlock();
    copy_one();
  }
  return taken(ready, random_below(ready.size()));
}

void live();

[[noreturn]] void resume(Thread* thread) {
  current = thread;
  threadIdx = {thread->index, 0, 0};
  blockIdx = thread->block->index;
  if (thread->started) _longjmp(thread->context, 1);
  thread->started = true;
  ucontext_t fresh;
  getcontext(&fresh);
  fresh.uc_stack.ss_sp = stacks + thread->number * STACK;
  fresh.uc_stack.ss_size = STACK;
  fresh.uc_link = nullptr;
  memset(fresh.uc_stack.ss_sp, UNTOUCHED, EDGE);
  makecontext(&fresh, live, 0);
  setcontext(&fresh);
  __builtin_unreachable();
}

void wait_here(const char* what) {
  current->waits_for = what;
  Thread* next = choose();
  if (next != current && _setjmp(current->context) == 0) resume(next);
}

void let_go(Meeting& meeting) {
  if (meeting.act) {
    meeting.act(meeting.brought.data(), meeting.brought.size());
    std::fill(meeting.brought.begin(), meeting.brought.end(), nullptr);
  }
  meeting.come = 0;
  ready.insert(ready.end(), meeting.waiting.begin(), meeting.waiting.end());
  meeting.waiting.clear();
}

void meet(Meeting& meeting, u32 place, const char* what, machine::Act act, void* brought) {
  if (meeting.come == 0) meeting.what = what, meeting.act = act;
  if (strcmp(meeting.what, what)) {
    snprintf(message, sizeof message, "threads that belong together are at %s and at %s", meeting.what, what);
    give_up();
  }
  if (meeting.whole && meeting.alive < meeting.brought.size()) machine::fail("threads that are needed have ended");
  meeting.brought[place] = brought;
  if (++meeting.come == meeting.alive) return let_go(meeting);
  meeting.waiting.push_back(current);
  wait_here(what);
}

void leave(Meeting& meeting) {
  if (--meeting.alive > 0 && meeting.come == meeting.alive && !meeting.whole) let_go(meeting);
}

void check_edge(const u8* edge, const char* where) {
  for (size_t i = 0; i < EDGE; i++)
    if (edge[i] != UNTOUCHED) machine::fail(where);
}

// What a thread does, block after block.
void live() {
  for (;;) {
    launch.kernel(launch.argument);
    check_edge(stacks + current->number * STACK, "a thread's stack was too small");
    current->ended = true;
    for (Meeting* meeting : {&current->block->warps[current->index / 32], &current->block->fours[current->index / 128],
                             &current->block->all, &cluster})
      leave(*meeting);
    left--;
    if (_setjmp(current->context) != 0) continue;      // the next block
    if (left > 0) resume(choose());
    siglongjmp(outside, 1);
  }
}

// The blocks from `first` on, which run at once.
void begin(const std::vector<u32>& order, u32 first) {
  for (u32 b = 0; b < blocks.size(); b++) {
    Block& block = blocks[b];
    u32 number = order[first / blocks.size()] * blocks.size() + b;
    block.index = {number % launch.blocks_x, number / launch.blocks_x, 0};
    block.rank = block.index.x % launch.cluster;
    memset(block.shared - EDGE, UNTOUCHED, launch.launched + 2 * EDGE + VARIABLES);
    memset(block.shared, UNWRITTEN, launch.launched);
    memset(block.variables, 0, sizeof block.variables);
    block.used = launch.launched + EDGE;
    block.all.reset(launch.threads, false);
    for (auto& warp : block.warps) warp.reset(32, true);
    for (auto& four : block.fours) four.reset(128, true);
  }
  cluster.reset(threads.size(), true);
  ready.clear(), testing.clear(), copies.clear();
  for (Thread& thread : threads) {
    thread.ended = false;
    thread.waits_for = "its start";
    thread.later.clear();
    ready.push_back(&thread);
  }
  left = threads.size();
}

void end() {
  if (!copies.empty()) machine::fail("a block ended while a copy was under way");
  for (Block& block : blocks) {
    check_edge(block.shared - EDGE, "a write in front of shared memory");
    check_edge(block.shared + launch.launched, "a write past the shared memory of the launch");
    check_edge(block.shared + block.used, "a write past the last variable in shared memory");
  }
}

void make_room(u32 at_once) {
  blocks.resize(at_once);
  threads.assign(at_once * launch.threads, Thread());
  for (u32 b = 0; b < at_once; b++) {
    Block& block = blocks[b];
    block.memory.resize(2 * EDGE + launch.launched + EDGE + VARIABLES + 1024);
    block.shared = (u8*)(((u64)block.memory.data() + EDGE + 1023) / 1024 * 1024);
    block.warps.resize(launch.threads / 32);
    block.fours.resize((launch.threads + 127) / 128);
    for (u32 t = 0; t < launch.threads; t++) {
      Thread& thread = threads[b * launch.threads + t];
      thread.index = t, thread.number = b * launch.threads + t, thread.block = &block;
    }
  }
  if (threads.size() <= stacks_for) return;
  if (stacks) munmap(stacks, stacks_for * STACK);
  stacks_for = threads.size();
  stacks = (u8*)mmap(nullptr, stacks_for * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

std::vector<u32> shuffled(u32 count) {
  std::vector<u32> order;
  for (u32 i = 0; i < count; i++) order.push_back(i);
  for (u32 i = count; i > 1; i--) std::swap(order[i - 1], order[random_below(i)]);
  return order;
}

}  // namespace

namespace machine {

void fail(const char* what) {
  snprintf(message, sizeof message, "%s, in thread %u of block (%u, %u)", what, threadIdx.x, blockIdx.x, blockIdx.y);
  give_up();
}

void meet_warp(const char* what, Act act, void* brought) {
  meet(current->block->warps[current->index / 32], current->index % 32, what, act, brought);
}
void meet_four_warps(const char* what, Act act, void* brought) {
  meet(current->block->fours[current->index / 128], current->index % 128, what, act, brought);
}
void meet_block(const char* what, Act act, void* brought) {
  meet(current->block->all, current->index, what, act, brought);
}
void meet_cluster(const char* what) { meet(cluster, current->number, what, nullptr, nullptr); }

void wait_until(const char* what, bool (*test)(const void*), const void* about) {
  current->test = test, current->about = about;
  if (test(about)) return;
  testing.push_back(current);
  wait_here(what);
}

u32 rank() { return current->block->rank; }
u32 chance(u32 below) { return random_below(below); }

void* launched_bytes() { return current->block->shared; }

void* variable(u32 number, u64 bytes) {
  Block& block = *current->block;
  if (!block.variables[number]) {
    block.variables[number] = block.shared + (block.used + EDGE + 15) / 16 * 16;
    block.used = (u8*)block.variables[number] + bytes - block.shared;
    if (block.used + 2 * EDGE > launch.launched + VARIABLES) fail("too many variables in shared memory");
    memset(block.variables[number], UNWRITTEN, bytes);
  }
  return block.variables[number];
}

u32 address_of(const void* p) {
  i64 offset = (const u8*)p - current->block->shared;
  if (offset < 0 || offset >= (i64)current->block->used) fail("a pointer that does not point to this block's shared memory");
  return offset;
}

void* at_address(u32 address, u32 bytes, u32 multiple) {
  u32 place = address & 0xffffff;
  if ((address >> 24) > blocks.size()) fail("an address in a block that the cluster has not");
  Block& block = address >> 24 ? blocks[(address >> 24) - 1] : *current->block;
  if (place % multiple) fail("an address in shared memory that is not aligned");
  bool launched = place + bytes <= launch.launched, variable = place >= launch.launched + EDGE;
  if (!launched && !(variable && place + bytes <= block.used)) fail("an address outside of shared memory");
  return block.shared + place;
}

void copy_some_time(void* to, const void* from, u32 bytes, void (*then)(void*, u32), void* about) {
  copies.push_back({to, from, bytes, then, about});
}

void remember(const Later& later) { current->later.push_back(later); }

u32 remembered(const Later*& first) {
  static std::vector<Later> taken;
  taken.swap(current->later);
  current->later.clear();
  first = taken.data();
  return taken.size();
}

}  // namespace machine

// Runs all blocks. Returns null, or what went wrong.
extern "C" const char* run_kernel(void (*kernel)(const void*), const void* argument, u32 blocks_x, u32 blocks_y,
                                  u32 threads_of_block, u32 of_cluster, u64 shared_bytes, u32 cooperative, u64 seed) {
  launch = {kernel, argument, blocks_x, threads_of_block, of_cluster, shared_bytes};
  state = seed * 0x9e3779b97f4a7c15 + 1;
  gridDim = {blocks_x, blocks_y, 1};
  u32 all = blocks_x * blocks_y, at_once = cooperative ? all : of_cluster;
  make_room(at_once);
  static u8 signal_stack[1 << 16];
  const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
  struct sigaction crash = {}, before[4];
  crash.sa_sigaction = crashed;
  crash.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  stack_t mine = {signal_stack, 0, sizeof signal_stack}, theirs;
  sigaltstack(&mine, &theirs);
  for (int i = 0; i < 4; i++) sigaction(signals[i], &crash, &before[i]);
  const std::vector<u32> order = shuffled(all / at_once);
  static volatile u32 first;
  message[0] = 0;
  for (first = 0; first < all && !message[0]; first = first + at_once) {
    begin(order, first);
    if (sigsetjmp(outside, 1) == 0) resume(choose());
    if (!message[0] && sigsetjmp(outside, 1) == 0) end();
  }
  for (int i = 0; i < 4; i++) sigaction(signals[i], &before[i], nullptr);
  sigaltstack(&theirs, nullptr);
  return message[0] ? message : nullptr;
}
