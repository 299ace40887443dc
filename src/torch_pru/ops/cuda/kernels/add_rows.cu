// The gradient of a lookup: rows are added to the rows of a table, one table row for each word. A block serves a
// position of the text: if its word came before, another block has it; if not, the block finds all positions of the
// word, sums their rows in a fixed order and adds the sum to the word's row. Nothing is sorted, no row has two writers.
struct AddRowsArgs {
  float* table;            // (words, columns), its rows `stride` apart
  const float* rows;       // (positions, columns)
  const i64* tokens;       // (positions): the row of the table that each belongs to
  i64 positions, columns, stride;
};

#if VECTOR                               // columns and stride are multiples of 4, rows begin at 16 bytes
typedef float4 Pack;
DEVICE Pack zero() { return make_float4(0.f, 0.f, 0.f, 0.f); }
DEVICE void add(Pack& a, Pack b) { a.x += b.x; a.y += b.y; a.z += b.z; a.w += b.w; }
#define WIDTH 4
#else
typedef float Pack;
DEVICE Pack zero() { return 0.f; }
DEVICE void add(Pack& a, Pack b) { a += b; }
#define WIDTH 1
#endif

#define SPAN 8                           // tokens that a thread compares at once
#define TILE (SPAN * THREADS)
#define DEPTH 8                          // rows that a thread loads at once
#define WARPS (THREADS / 32)

DEVICE bool met_before(const i64* tokens, int position, i64 word) {
  for (int start = 0; start < position; start += TILE) {
    bool met = false;
    for (int i = 0; i < SPAN; i++) {
      int q = start + THREADS * i + threadIdx.x;
      if (q < position) met |= tokens[q] == word;
    }
    if (__syncthreads_or(met)) return true;
  }
  return false;
}

// The number of TILE tokens that are the word; `found` gets their positions in order.
DEVICE int find(const i64* tokens, int many, i64 word, u16* found) {
  __shared__ int of_warp[WARPS];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = 32 * SPAN * warp + lane, mine = 0;
  u32 votes[SPAN];
  for (int i = 0; i < SPAN; i++) {
    bool same = false;
    if (first + 32 * i < many) same = tokens[first + 32 * i] == word;
    votes[i] = __ballot_sync(~0u, same);
    mine += __popc(votes[i]);
  }
  __syncthreads();                                     // the previous tile has been used
  if (lane == 0) of_warp[warp] = mine;
  __syncthreads();
  int at = 0, all = 0;
  for (int w = 0; w < WARPS; w++) {
    if (w < warp) at += of_warp[w];
    all += of_warp[w];
  }
  for (int i = 0; i < SPAN; i++) {
    if (votes[i] >> lane & 1) found[at + __popc(votes[i] & ((1u << lane) - 1))] = first + 32 * i;
    at += __popc(votes[i]);
  }
  __syncthreads();
  return all;
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) add_rows(AddRowsArgs a) {
  __shared__ u16 found[TILE];
  __shared__ Pack of_thread[THREADS];
  int position = blockIdx.x;
  if (position >= a.positions) return;
  i64 word = a.tokens[position];
  if (met_before(a.tokens, position, word)) return;
  // Adjacent threads take the columns of a row; the other threads of the block take further rows in the same way.
  int packs = a.columns / WIDTH, across = packs < THREADS ? packs : THREADS, teams = THREADS / across;
  int team = threadIdx.x / across;
  for (int column = threadIdx.x % across, left = packs; left > 0; column += across, left -= across) {
    bool works = team < teams && column < packs;
    Pack sum = zero();
    for (int start = position; start < a.positions; start += TILE) {
      int all = find(a.tokens + start, a.positions - start, word, found);
      const Pack* rows = (const Pack*)a.rows + (i64)start * packs + column;
      for (int i = team; works && i < all; i += DEPTH * teams) {
        Pack row[DEPTH];
        for (int j = 0; j < DEPTH; j++) {
          row[j] = zero();
          if (i + j * teams < all) row[j] = rows[(i64)found[i + j * teams] * packs];
        }
        for (int j = 0; j < DEPTH; j++) add(sum, row[j]);
      }
    }
    of_thread[threadIdx.x] = sum;
    __syncthreads();
    if (team == 0 && works) {
      for (int t = 1; t < teams; t++) add(sum, of_thread[t * across + threadIdx.x]);
      add(((Pack*)(a.table + word * a.stride))[column], sum);
    }
  }
}
