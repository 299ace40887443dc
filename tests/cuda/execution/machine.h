// What a kernel's text, compiled as C++, asks of the machine that runs it: see machine.cpp. No system headers: the
// kernels' constants have names such as N and D.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct Index { u32 x, y, z; };
extern Index threadIdx, blockIdx, gridDim;

namespace machine {

[[noreturn]] void fail(const char* what);

// Waits until all threads of the warp, of four warps, of the block or of the cluster have come with the same `what`.
// The last of them calls `act` with what each has brought, by their order.
typedef void (*Act)(void* const* brought, u32 count);
void meet_warp(const char* what, Act act = nullptr, void* brought = nullptr);
void meet_four_warps(const char* what, Act act = nullptr, void* brought = nullptr);
void meet_block(const char* what, Act act = nullptr, void* brought = nullptr);
void meet_cluster(const char* what);

// Waits until test(about) holds.
void wait_until(const char* what, bool (*test)(const void*), const void* about);

u32 rank();                                            // of the block in its cluster
u32 chance(u32 below);                                 // a random number

// Shared memory. Addresses are bytes from the start of a block's; those of a block of the cluster have its rank + 1 on top.
void* launched_bytes();
void* variable(u32 number, u64 bytes);
u32 address_of(const void* p);
void* at_address(u32 address, u32 bytes, u32 multiple);

// Done at some time from now on, at once when nothing else can go on, and before the cluster ends.
void copy_some_time(void* to, const void* from, u32 bytes, void (*then)(void* about, u32 bytes), void* about);

// What a thread has asked for and waits for later: cp.async and wgmma.
struct Later { void* to; const void* from; u32 fragment[4]; u64 about; u32 size; };
void remember(const Later& later);
u32 remembered(const Later*& first);                   // how many; they are forgotten

}  // namespace machine
