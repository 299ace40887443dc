// One token through a whole model, batch 1. A warp takes rows of a weight, in packs of 8 elements, each pack once from
// memory; the vector they are multiplied with lies in shared memory. The first packs are loaded before the vector
// is complete. Sums are float32, and nothing between the input and the gates is rounded.
#define LANES 32

DEVICE float dot8(uint4 a, uint4 b) {
  const u32 left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.f;
  for (int i = 0; i < 4; i++)
    sum += widen(left[i]) * widen(right[i]) + widen(left[i] >> 16) * widen(right[i] >> 16);
  return sum;
}

template <int PACKS> struct Row {
  static constexpr int TURNS = (PACKS + LANES - 1) / LANES, AHEAD = TURNS < 4 ? TURNS : 4;
  const uint4* packs;
  uint4 held[AHEAD];                                   // the packs of the next turns, in flight

  DEVICE uint4 load(int turn, int lane) {
    const int k = turn * LANES + lane;
    return k < PACKS ? packs[k] : make_uint4(0, 0, 0, 0);
  }

  DEVICE void ask(const uint4* start, int lane) {
    packs = start;
#pragma unroll
    for (int slot = 0; slot < AHEAD; slot++) held[slot] = load(slot, lane);
  }

  // This lane's part of the product with `vector`.
  DEVICE float product(const uint4* vector, int lane) {
    float sum = 0.f;
    for (int base = 0; base < TURNS; base += AHEAD) {
#pragma unroll
      for (int slot = 0; slot < AHEAD; slot++) {
        const int turn = base + slot, k = turn * LANES + lane;
        const uint4 pack = held[slot];
        held[slot] = load(turn + AHEAD, lane);
        if (k < PACKS) sum += dot8(pack, vector[k]);
      }
    }
    return sum;
  }
};

DEVICE float sum_lanes(float x) {
  for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// Brings COUNT elements into shared memory, with zeros up to the next multiple of 8. They are aligned to 4 bytes.
template <int COUNT, int THREADS> struct Staged {
  static constexpr int PAIRS = (COUNT + 7) / 8 * 4, TURNS = (PAIRS + THREADS - 1) / THREADS;
  u32 held[TURNS];

  DEVICE void ask(const u16* from) {
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int first = 2 * (turn * THREADS + (int)threadIdx.x);
      held[turn] = first + 1 < COUNT ? *(const u32*)(from + first) : first < COUNT ? from[first] : 0;
    }
  }

  DEVICE void put(uint4* packs) {
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int pair = turn * THREADS + threadIdx.x;
      if (pair < PAIRS) ((u32*)packs)[pair] = held[turn];
    }
  }
};

// A word with its score as one number: a larger score is a larger key, and of equal ones the first word's is.
DEVICE u64 key_of(float score, u32 word) {
  u32 bits = __float_as_uint(score);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  return (u64)bits << 32 | (u32)~word;
}
DEVICE u32 word_of(u64 key) { return ~(u32)key; }
