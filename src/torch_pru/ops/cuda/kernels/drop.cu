// Dropout, weight drop, and the backward of both: values * mask / keep, from and to float32 or 16 bits.
typedef Number<FROM32> Value;
typedef Number<TO32> Result;

struct DropArgs {
  const Value* values;     // (rows, columns); where D is given, (G, 4, D, D) with the strides below, the last one 1
  const u8* mask;          // (rows, columns) zeros and ones, rows `mask_pitch` apart: 0 where all share one
  Result* out;             // (rows, columns)
  i64 rows, columns, mask_pitch;
  i64 group_stride, gate_stride, unit_stride;
  double keep;
};

extern "C" __global__ void __launch_bounds__(THREADS) drop(DropArgs a) {
#if D
  const u32 packs = D / VEC;                           // constants, so that no division remains
#else
  const u32 packs = a.columns / VEC;
#endif
  const float scale = 1.f / (float)a.keep;
  const u32 count = a.rows * packs, stride = gridDim.x * THREADS;
  for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < count; i += stride) {
    const u32 row = i / packs, place = i % packs * VEC;
#if D
    const i64 at = row / (4 * D) * a.group_stride + row / D % 4 * a.gate_stride + row % D * a.unit_stride + place;
#else
    const i64 at = (i64)i * VEC;
#endif
    const auto values = load<VEC>(a.values + at);
    const auto kept = load<VEC>(a.mask + row * a.mask_pitch + place);
    Pack<Result, VEC> out;
    for (int k = 0; k < VEC; k++) set(out.at[k], to_float(values.at[k]) * (kept.at[k] ? scale : 0.f));
    store(a.out + (i64)i * VEC, out);
  }
}
