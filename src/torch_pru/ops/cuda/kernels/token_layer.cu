// A layer's whole step for one token: input product, residual, context product, gates. A warp sums one gate of one
// unit over the input and over the unit's own group of the context.
#define INPUT_PACKS ((N + 7) / 8)
#define ROW_PACKS (INPUT_PACKS + (D + 7) / 8)
#define THREADS (UNITS * 4 * LANES)

struct TokenLayerArgs {
  const uint4* weight;     // (M, 4, ROW_PACKS): input, then context of the unit's group, each padded with zeros
  const float* bias;       // (4, M) or null
  const u16* x;            // (N); with a key (words, 8 * INPUT_PACKS), of which it names the row
  const u64* key;          // or null
  const u16* h0;           // (M)
  const float* c0;         // (M)
  u16* hn;                 // (M), not h0: other blocks still read it
  float* cn;               // (M)
  i64 width;               // M, a multiple of UNITS, which divide D: a block's units have one group
};

// Six blocks at once a multiprocessor: then 1400 units are a single wave on an H200.
extern "C" __global__ void __launch_bounds__(THREADS, 6)
token_layer(const __grid_constant__ TokenLayerArgs args) {
  __shared__ uint4 vector[ROW_PACKS];
  __shared__ float sums[UNITS * 4];
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, first = blockIdx.x * UNITS;
  Row<ROW_PACKS> row;
  row.ask(args.weight + ((i64)first * 4 + warp) * ROW_PACKS, lane);  // a unit's four gates lie side by side
  Staged<D, THREADS> context;
  context.ask(args.h0 + first / D * D);
  const int unit = first + threadIdx.x;
  const bool owner = threadIdx.x < UNITS;              // of a unit's state
  Four z = {0.f, 0.f, 0.f, 0.f};
  float c = owner ? args.c0[unit] : 0.f;
  if (owner && args.bias) {
    const float* bias = args.bias + unit;
    z = {bias[0], bias[args.width], bias[2 * args.width], bias[3 * args.width]};
  }
  Staged<N, THREADS> input;
  input.ask(args.x + (args.key ? (i64)word_of(*args.key) * (8 * INPUT_PACKS) : 0));
  context.put(vector + INPUT_PACKS);
  input.put(vector);
  __syncthreads();

  const float sum = sum_lanes(row.product(vector, lane));
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (!owner) return;

  const float* s = sums + 4 * threadIdx.x;
  z.i += s[0]; z.f += s[1]; z.g += s[2]; z.o += s[3];
#if RESIDUAL
  const float own = widen(((const u16*)vector)[unit]);  // N = M
  z.i += own; z.f += own; z.g += own; z.o += own;
#endif
  args.hn[unit] = narrow(advance(z, c));
  args.cn[unit] = c;
}
