// What the instructions of ptx.h and the whole-warp functions of cuda.h do.
#include <math.h>
#include <string.h>

#define BF16 0
#include "ptx.h"

// ---- conversions and functions

float widen_half(u16 x) { _Float16 y; memcpy(&y, &x, 2); return (float)y; }
u16 half_of(float x) {
  if (isnan(x)) return 0x7fff;
  _Float16 y = (_Float16)x;
  u16 word;
  memcpy(&word, &y, 2);
  return word;
}
u16 brain_of(float x) {
  if (isnan(x)) return 0x7fff;
  u32 word = __float_as_uint(x);
  return (word + 0x7fff + (word >> 16 & 1)) >> 16;     // to the nearest, of two the even one
}
float tanh_approximate(float x) { return tanhf(x); }
float exp2_fast(float x) { return exp2f(x); }
float log2_fast(float x) { return log2f(x); }

// ---- whole warps and blocks

static void need_all(u32 mask) { if (~mask) machine::fail("a mask without all lanes of the warp"); }

void shuffle(u32 mask, Shuffle mine) {
  need_all(mask);
  machine::meet_warp("a shuffle", [](void* const* brought, u32 count) {
    for (u32 lane = 0; lane < count; lane++) {
      auto& to = *(Shuffle*)brought[lane];
      memcpy(to.to, ((Shuffle*)brought[to.lane])->from, to.bytes);
    }
  }, &mine);
}

struct Vote { u32 mine, result; };
u32 __ballot_sync(u32 mask, int vote) {
  need_all(mask);
  Vote given = {vote != 0, 0};
  machine::meet_warp("a vote", [](void* const* brought, u32 count) {
    u32 all = 0;
    for (u32 lane = 0; lane < count; lane++) all |= ((Vote*)brought[lane])->mine << lane;
    for (u32 lane = 0; lane < count; lane++) ((Vote*)brought[lane])->result = all;
  }, &given);
  return given.result;
}
u32 __reduce_max_sync(u32 mask, u32 value) {
  need_all(mask);
  Vote given = {value, 0};
  machine::meet_warp("a maximum", [](void* const* brought, u32 count) {
    u32 most = 0;
    for (u32 lane = 0; lane < count; lane++) most = max(most, ((Vote*)brought[lane])->mine);
    for (u32 lane = 0; lane < count; lane++) ((Vote*)brought[lane])->result = most;
  }, &given);
  return given.result;
}
int __syncthreads_or(int vote) {
  Vote given = {vote != 0, 0};
  machine::meet_block("__syncthreads_or", [](void* const* brought, u32 count) {
    u32 any = 0;                                       // a thread that has ended brings nothing
    for (u32 i = 0; i < count; i++) any |= brought[i] ? ((Vote*)brought[i])->mine : 0;
    for (u32 i = 0; i < count; i++) if (brought[i]) ((Vote*)brought[i])->result = any;
  }, &given);
  return given.result;
}

// ---- copies within a thread

void copy16(u32 address, const void* from) {
  if ((u64)from % 16) machine::fail("a copy from an address that is not aligned");
  machine::remember({machine::at_address(address, 16, 16), from, {}, 0, 16});
}
void copies_wait() {
  const machine::Later* copies;
  u32 count = machine::remembered(copies);
  for (u32 i = 0; i < count; i++) memcpy(copies[i].to, copies[i].from, 16);
}

// ---- 8 x 8 matrices in shared memory

struct Matrices { u32 address; u32 words[4]; };

template <u32 COUNT> static void load_matrices(void* const* brought, u32 lanes) {
  for (u32 m = 0; m < COUNT; m++)
    for (u32 row = 0; row < 8; row++) {
      const u32* words = (const u32*)machine::at_address(((Matrices*)brought[m * 8 + row])->address, 16, 16);
      for (u32 pair = 0; pair < 4; pair++) ((Matrices*)brought[row * 4 + pair])->words[m] = words[pair];
    }
}
void load_matrices4(u32 (&m)[4], u32 address) {
  Matrices mine = {address, {}};
  machine::meet_warp("ldmatrix.x4", load_matrices<4>, &mine);
  memcpy(m, mine.words, 16);
}
void load_matrices2(u32 (&m)[4], u32 address) {
  Matrices mine = {address, {}};
  machine::meet_warp("ldmatrix.x2", load_matrices<2>, &mine);
  memcpy(m, mine.words, 8);
}
void store_matrices2_transposed(u32 address, u32 first, u32 second) {
  Matrices mine = {address, {first, second}};
  machine::meet_warp("stmatrix.x2.trans", [](void* const* brought, u32 lanes) {
    for (u32 m = 0; m < 2; m++)
      for (u32 row = 0; row < 8; row++) {              // of memory: a column of what the lanes hold
        u16* to = (u16*)machine::at_address(((Matrices*)brought[m * 8 + row])->address, 16, 16);
        for (u32 i = 0; i < 8; i++) to[i] = ((Matrices*)brought[i * 4 + row / 2])->words[m] >> row % 2 * 16;
      }
  }, &mine);
}

// ---- products of matrices

struct Element { bool brain; float operator()(u32 word, u32 half) const {
  u16 x = word >> half * 16;
  return brain ? widen_brain(x) : widen_half(x);
} };

// The 16 x 16 values of a that a warp's lanes hold as fragments.
static void spread_a(float (&rows)[16][16], u32 lane, const u32* a, Element value) {
  for (u32 r = 0; r < 4; r++)
    for (u32 half = 0; half < 2; half++)
      rows[lane / 4 + r % 2 * 8][lane % 4 * 2 + r / 2 * 8 + half] = value(a[r], half);
}
static void add_product(float* d, u32 lane, const float (&a)[16][16], const float (&b)[8][16]) {
  for (u32 e = 0; e < 4; e++) {
    const float *row = a[lane / 4 + e / 2 * 8], *column = b[lane % 4 * 2 + e % 2];
    float sum = 0;
    for (u32 k = 0; k < 16; k++) sum += row[k] * column[k];
    d[e] += sum;
  }
}

struct Product { float* d; const u32* a; u32 b[2]; bool brain; };

void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, bool brain) {
  Product mine = {d, a, {b0, b1}, brain};
  machine::meet_warp("mma", [](void* const* brought, u32 lanes) {
    float rows[16][16], columns[8][16];
    for (u32 lane = 0; lane < 32; lane++) {
      auto& p = *(Product*)brought[lane];
      spread_a(rows, lane, p.a, {p.brain});
      for (u32 r = 0; r < 2; r++)
        for (u32 half = 0; half < 2; half++)
          columns[lane / 4][lane % 4 * 2 + r * 8 + half] = Element{p.brain}(p.b[r], half);
    }
    for (u32 lane = 0; lane < 32; lane++) add_product(((Product*)brought[lane])->d, lane, rows, columns);
  }, &mine);
}

void wgmma(float* d, u32 tiles, const u32 (&a)[4], u64 b, bool brain) {
  machine::Later later = {d, nullptr, {a[0], a[1], a[2], a[3]}, b, tiles | (u32)brain << 8};
  machine::remember(later);                            // done as late as it may be
}
void wgmma_fence() { machine::meet_warp("wgmma.fence"); }

struct Products { const machine::Later* first; u32 count; };

// One instruction of four warps: matrices of 8 columns and 8 values of k lie where the descriptor says.
static void multiply_tiles(void* const* brought, u32 which) {
  auto of_lane = [&](u32 lane) -> const machine::Later& { return ((Products*)brought[lane])->first[which]; };
  u64 b = of_lane(0).about;
  u32 tiles = of_lane(0).size & 0xff;
  Element value = {(bool)(of_lane(0).size >> 8)};
  u32 start = (b & 0x3fff) * 16, along_k = (b >> 16 & 0x3fff) * 16, along_columns = (b >> 32 & 0x3fff) * 16;
  float rows[4][16][16], columns[4][8][16];
  for (u32 lane = 0; lane < 128; lane++) {
    if (of_lane(lane).about != b) machine::fail("four warps with different tiles");
    spread_a(rows[lane / 32], lane % 32, of_lane(lane).fragment, value);
  }
  for (u32 n = 0; n < tiles; n++)
    for (u32 column = 0; column < 8; column++)
      for (u32 k = 0; k < 16; k++) {
        u32 address = start + n * along_columns + k / 8 * along_k + column * 16;
        columns[n][column][k] = value(((const u16*)machine::at_address(address, 16, 16))[k % 8], 0);
      }
  for (u32 lane = 0; lane < 128; lane++)
    for (u32 n = 0; n < tiles; n++) add_product((float*)of_lane(lane).to + 4 * n, lane % 32, rows[lane / 32], columns[n]);
}
void wgmma_wait() {
  Products mine;
  machine::Later copy[256];
  const machine::Later* first;
  mine.count = machine::remembered(first);
  if (mine.count > 256) machine::fail("too many products under way");
  memcpy((void*)copy, first, mine.count * sizeof *first);
  mine.first = copy;
  machine::meet_four_warps("wgmma", [](void* const* brought, u32 lanes) {
    for (u32 which = 0; which < ((Products*)brought[0])->count; which++) multiply_tiles(brought, which);
  }, &mine);
}

// ---- clusters

struct Counter {                                       // in the eight bytes of an mbarrier
  int bytes;                                           // expected and not arrived
  u16 arrivals, phase;                                 // arrivals that are missing; phases that are over, modulo 2
  void check() { if (arrivals == 0 && bytes == 0) phase ^= 1, arrivals = 1; }
};
static Counter& counter_at(u32 address) { return *(Counter*)machine::at_address(address, 8, 8); }

void counter_init(u64* counter) { counter_at(smem_address(counter)) = {0, 1, 0}; }
void counter_expect(u64* counter, u32 bytes) {
  Counter& c = counter_at(smem_address(counter));
  if (c.arrivals == 0) machine::fail("a counter with more arrivals than it has room for");
  c.bytes += bytes, c.arrivals--;
  c.check();
}
void counter_wait(u64* counter, u32 parity) {
  Counter* c = &counter_at(smem_address(counter));
  auto over = [](const void* p) { return ((const Counter*)p)->phase == 1; };
  auto even = [](const void* p) { return ((const Counter*)p)->phase == 0; };
  machine::wait_until("a counter", parity ? (bool (*)(const void*))even : (bool (*)(const void*))over, c);
}
void send(const void* from, const void* to, u64* counter, u32 bytes, u32 rank) {
  u32 there = (rank + 1) << 24;
  if (bytes % 16) machine::fail("a copy of bytes that 16 does not divide");
  machine::copy_some_time(machine::at_address(smem_address(to) | there, bytes, 16),
                          machine::at_address(smem_address(from), bytes, 16), bytes,
                          [](void* c, u32 arrived) { ((Counter*)c)->bytes -= arrived, ((Counter*)c)->check(); },
                          &counter_at(smem_address(counter) | there));
}

// ---- global memory that others write meanwhile

static bool is_there(const void* p) {
  const uint4& v = *(const uint4*)p;
  return ~v.x && ~v.y && ~v.z && ~v.w;
}
// A word of ones says that there is nothing yet: half of the time the caller sees it, so that it must ask again.
uint4 peek(const void* p) {
  if ((u64)p % 16) machine::fail("a load from an address that is not aligned");
  if (!is_there(p) && machine::chance(2)) machine::wait_until("a value from another block", is_there, p);
  return *(const uint4*)p;
}
void put(u32* p, u32 x) { *(volatile u32*)p = x; }
void put2(uint2* p, uint2 x) { *(volatile u64*)p = x.x | (u64)x.y << 32; }
