// What is left between the recurrence's backward pass and the last product: the hidden state that every step started
// from, with its groups padded, and the gradient of the bias, whose parts are added in order.
typedef Number<OUT_32> Output;
typedef Number<H0_32> Initial;
typedef Number<BIAS_32> Bias;
#define PACKS ((D + 7) / 8)
#define AT_ONCE (D % 8 == 0 ? 8 : 2)                   // D is even: pairs of `out` are aligned, whatever group they are in

struct TailArgs {
  const Output* out;       // (T, B, G, D)
  const Initial* h0;       // (B, G, D), or null: zeros
  const i64* lengths;      // (B) or null
  const float* parts;      // (rows, M, 4)
  u16* before;             // (T, B, G, 8 * PACKS)
  Bias* dbias;             // (copies, 4, M)
  i64 steps, batch, groups, reverse, rows, copies;
};

// The row of h0 (B, G) that row r of (T, B, G) starts from, or -1: it starts from the step processed before it.
DEVICE i64 initial_row(const TailArgs& a, i64 r) {
  const i64 step_rows = a.batch * a.groups, last = (a.steps - 1) * step_rows;
  if (!a.reverse) return r < step_rows ? r : -1;
  if (r >= last) return r - last;
  if (!a.lengths) return -1;
  const i64 row = r % step_rows, length = a.lengths[row / a.groups];
  return r / step_rows == (length > 1 ? length - 1 : 0) ? row : -1;
}

extern "C" __global__ void __launch_bounds__(THREADS) backward_tail(TailArgs a) {
  const i64 stride = (i64)gridDim.x * THREADS, units = a.groups * D;
  // Counted from the last block: if there are fewer rows than blocks, the last blocks have none of the rows below.
  for (i64 i = (i64)(gridDim.x - 1 - blockIdx.x) * THREADS + threadIdx.x; i < 4 * units; i += stride) {
    float sum = 0.f;
#pragma unroll 8
    for (i64 row = 0; row < a.rows; row++) sum += a.parts[row * 4 * units + i];
    for (i64 copy = 0; copy < a.copies; copy++) set(a.dbias[(copy * 4 + i % 4) * units + i / 4], sum);
  }
  const i64 step_rows = a.batch * a.groups, neighbour = a.reverse ? step_rows : -step_rows;
  for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < a.steps * step_rows * PACKS; i += stride) {
    const i64 row = i / PACKS, initial = initial_row(a, row);
    const int place = i % PACKS * 8;
    Pack<u16, 8> h;
    for (int k = 0; k < 8; k += AT_ONCE) {
      Pack<Output, AT_ONCE> part = {};
      if (place + k < D) {
        if (initial < 0) part = load<AT_ONCE>(a.out + (row + neighbour) * D + place + k);
        else if (a.h0) for (int j = 0; j < AT_ONCE; j++) set(part.at[j], to_float(a.h0[initial * D + place + k + j]));
      }
      for (int j = 0; j < AT_ONCE; j++) set(h.at[k + j], to_float(part.at[j]));
    }
    store(a.before + i * 8, h);
  }
}
