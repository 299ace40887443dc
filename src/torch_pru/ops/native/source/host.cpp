// What the host does for a call of a layer on a GPU, as one operator each way: it allocates, multiplies, and launches the
// kernels of ops/cuda. PyTorch's stable C interface does the first two, CUDA's driver the third. Python looks their
// functions up (ops/cuda/host.py), so that this is linked with neither, and one binary serves all versions.
// An operator that fails returns an empty list: Python then repeats the call in its own way, which says what is wrong.
#include "host.h"

namespace {

enum { HAS_BIAS = 1, HAS_OTHER_BIAS = 2, HAS_H0 = 4, HAS_C0 = 8, HAS_LENGTHS = 16, SAVE = 32, REVERSE = 64 };
enum { HAS_GRAD_OUT = 128, HAS_GRAD_HN = 256, HAS_GRAD_CN = 512, OF_X = 1024, OF_CONTEXT = 2048, OF_LEVELS = 4096 };
enum { OF_BIAS = 8192, OF_OTHER_BIAS = 16384 };

// (plan, [x, context, levels..., bias?, other_bias?, h0?, c0?, lengths?], flags, stream)
// -> [out, hn, cn], and with SAVE [folded, activations, cells]
void forward(Value* stack, uint64_t, uint64_t) {
  const Plan& plan = *(const Plan*)stack[0];
  Given given(*plan.functions, (List)stack[1]);
  const i64 flags = (i64)stack[2];
  Call call(plan, stack[3]);
  const i64 features = plan.features, width = plan.width;
  const Tensor &x = given.next(plan.dtype), &context = given.next(plan.dtype);
  const Tensor* levels = &given.next(plan.level);
  for (i64 k = 1; k < plan.bands.levels; k++) given.next(plan.level);
  const Tensor& bias = given.next(plan.bias, flags & HAS_BIAS);
  const Tensor& other_bias = given.next(plan.bias, flags & HAS_OTHER_BIAS);
  const Tensor &h0 = given.next(plan.dtype, flags & HAS_H0), &c0 = given.next(plan.cell, flags & HAS_C0);
  const Tensor& lengths = given.next(INT64, flags & HAS_LENGTHS);
  call.failed = !given.fit;
  i64* sizes = nullptr;
  plan.functions->sizes(x.handle, &sizes);
  const i64 steps = sizes[0], batch = sizes[1], rows = steps * batch;

  Tensor folded = call.empty({4 * width, features}, plan.dtype), gates = call.empty({rows, 4 * width}, plan.dtype);
  call.fold(levels, folded);
  Tensor operand = call.view(x, {rows, features}, {features, 1});
  Tensor transposed = call.view(folded, {features, 4 * width}, {1, features});
  if (plan.residual_pass.function) {
    const i64 words[] = {x.address(), gates.address(), rows * features};
    call.launch(plan.residual_pass, words);
    call.addmm(gates, operand, transposed);            // one rounding of the whole sum
  } else {
    call.mm(gates, operand, transposed);
  }

  const bool save = flags & SAVE;
  Tensor out = call.empty({steps, batch, width}, plan.dtype), hn = call.empty({1, batch, width}, plan.dtype);
  Tensor cn = call.empty({1, batch, width}, plan.cell), activations, cells, exchange;
  if (save) {
    activations = call.empty({steps, batch, width, 4}, plan.kept);
    cells = call.empty({steps, batch, width}, plan.kept);
  }
  if (plan.recurrence.cooperative) {
    exchange = call.empty({steps, plan.groups, batch, plan.padded}, INT16);
    call.fill(exchange, steps * plan.groups * batch * plan.padded);
  }
  const i64 residual = plan.residual ? x.address() : 0;
  const i64 words[] = {gates.address(), residual, context.address(), bias.address(), other_bias.address(), h0.address(),
                       c0.address(), lengths.address(), out.address(), hn.address(), cn.address(),
                       activations.address(), cells.address(), exchange.address(), steps, batch, plan.groups,
                       (flags & REVERSE) != 0, plan.real_bias, plan.real_cells};
  call.launch(plan.recurrence, words);
  call.add(static_cast<Tensor&&>(out));
  call.add(static_cast<Tensor&&>(hn));
  call.add(static_cast<Tensor&&>(cn));
  if (save) {
    call.add(static_cast<Tensor&&>(folded));
    call.add(static_cast<Tensor&&>(activations));
    call.add(static_cast<Tensor&&>(cells));
  }
  stack[0] = call.finish();
}

// (plan, [x, context, levels..., bias?, other_bias?, h0?, c0?], flags, stream) -> [out, hn, cn], of a single step
void step(Value* stack, uint64_t, uint64_t) {
  const Plan& plan = *(const Plan*)stack[0];
  const Fold& bands = plan.bands;
  Given given(*plan.functions, (List)stack[1]);
  const i64 flags = (i64)stack[2], width = plan.width;
  Call call(plan, stack[3]);
  i64 words[5 * MOST_LEVELS + 13], *to = words;        // in the order of LayerStepArgs
  const Tensor &x = given.next(plan.dtype), &context = given.next(plan.dtype);
  *to++ = x.address();
  for (i64 k = 0; k < bands.levels; k++) *to++ = given.next(plan.level).address();
  for (i64 k = 0; k < bands.levels; k++) *to++ = bands.first[k];
  for (i64 k = 0; k < bands.levels; k++) *to++ = bands.share[k];
  *to++ = context.address();
  *to++ = given.next(plan.bias, flags & HAS_BIAS).address();
  *to++ = given.next(plan.bias, flags & HAS_OTHER_BIAS).address();
  *to++ = given.next(plan.dtype, flags & HAS_H0).address();
  *to++ = given.next(plan.cell, flags & HAS_C0).address();
  call.failed = !given.fit;
  i64* sizes = nullptr;
  plan.functions->sizes(x.handle, &sizes);
  Tensor out = call.empty({1, sizes[1], width}, plan.dtype), hn = call.empty({1, sizes[1], width}, plan.dtype);
  Tensor cn = call.empty({1, sizes[1], width}, plan.cell);
  *to++ = out.address();
  *to++ = hn.address();
  *to++ = cn.address();
  for (i64 k = 0; k < bands.levels; k++) *to++ = bands.units[k];
  for (i64 k = 0; k < bands.levels; k++) *to++ = bands.widths[k];
  *to++ = plan.features;
  *to++ = plan.groups;
  *to++ = plan.real_bias;
  *to++ = plan.real_cells;
  call.launch(plan.recurrence, words);
  call.add(static_cast<Tensor&&>(out));
  call.add(static_cast<Tensor&&>(hn));
  call.add(static_cast<Tensor&&>(cn));
  stack[0] = call.finish();
}

// The gradients of the levels: one product for the whole matrix, which unfold takes apart.
void gradients_of_levels(Call& call, const Tensor& dgates, const Tensor& x, i64 rows) {
  const Plan& plan = call.plan;
  const i64 features = plan.features, gates = 4 * plan.width;
  // In 16 bits, as both factors are: half the bytes for a pass that does little but move them.
  Tensor product = call.empty({gates, features}, plan.dtype), levels[MOST_LEVELS];
  call.mm(product, call.view(dgates, {gates, rows}, {1, gates}), call.view(x, {rows, features}, {features, 1}));
  for (i64 k = 0; k < plan.bands.levels; k++)
    levels[k] = call.empty({4 * plan.bands.units[k], features >> k}, plan.level);
  call.fold(levels, product);
  for (i64 k = 0; k < plan.bands.levels; k++) call.add(static_cast<Tensor&&>(levels[k]));
}

// (G, D·4, padded), the products of each group, as the (4·M, D) of the weight.
Tensor gradient_of_context(Call& call, const Tensor& dgates, const Tensor& before, i64 rows) {
  const Plan& plan = call.plan;
  const i64 groups = plan.groups, size = plan.width / groups, padded = plan.padded, gates = 4 * plan.width;
  Tensor product = call.empty({groups, 4 * size, padded}, plan.dtype);
  call.bmm(product, call.view(dgates, {groups, 4 * size, rows}, {4 * size, 1, gates}),
           call.view(before, {groups, rows, padded}, {padded, groups * padded, 1}));
  Tensor gradient = call.empty({gates, size}, plan.dtype);
  call.copy(call.view(gradient, {4, groups, size, size}, {plan.width * size, size * size, size, 1}),
            call.view(product, {4, groups, size, size}, {padded, 4 * size * padded, 4 * padded, 1}));
  return gradient;
}

// (plan, [out, context, x, folded, activations, cells, grad_out?, grad_hn?, grad_cn?, h0?, c0?, lengths?], flags, stream)
// -> the gradients of [x?, h0, c0, context?, bias?, other_bias?, levels...?]
void backward(Value* stack, uint64_t, uint64_t) {
  const Plan& plan = *(const Plan*)stack[0];
  Given given(*plan.functions, (List)stack[1]);
  const i64 flags = (i64)stack[2];
  Call call(plan, stack[3]);
  const i64 features = plan.features, width = plan.width, gates = 4 * width;
  const Tensor &out = given.next(plan.dtype), &context = given.next(plan.dtype), &x = given.next(plan.dtype);
  const Tensor &folded = given.next(plan.dtype), &activations = given.next(plan.kept), &cells = given.next(plan.kept);
  const Tensor& grad_out = given.next(plan.dtype, flags & HAS_GRAD_OUT);
  const Tensor& grad_hn = given.next(plan.dtype, flags & HAS_GRAD_HN);
  const Tensor &grad_cn = given.next(FLOAT32, flags & HAS_GRAD_CN), &h0 = given.next(plan.dtype, flags & HAS_H0);
  const Tensor &c0 = given.next(FLOAT32, flags & HAS_C0), &lengths = given.next(INT64, flags & HAS_LENGTHS);
  call.failed = !given.fit;
  i64* sizes = nullptr;
  plan.functions->sizes(out.handle, &sizes);
  const i64 steps = sizes[0], batch = sizes[1], rows = steps * batch, reverse = (flags & REVERSE) != 0;

  Tensor dgates = call.empty({steps, batch, width, 4}, plan.dtype);
  if (plan.recurrence.cooperative) call.fill(dgates, rows * gates);
  Tensor gradient;                                     // of x; of a residual alone before the product is added
  if (flags & OF_X) gradient = call.empty({steps, batch, features}, plan.dtype);
  const i64 dresidual = plan.residual ? gradient.address() : 0;
  Tensor dh0 = call.empty({batch, width}, FLOAT32), dc0 = call.empty({batch, width}, FLOAT32);
  Tensor bias_parts = call.empty({plan.bias_rows, width, 4}, FLOAT32);
  const i64 words[] = {grad_out.address(), grad_hn.address(), grad_cn.address(), context.address(), c0.address(),
                       activations.address(), cells.address(), lengths.address(), dgates.address(), dresidual, dh0.address(),
                       dc0.address(), bias_parts.address(), steps, batch, plan.groups, reverse};
  call.launch(plan.recurrence, words);

  if (flags & OF_X) {
    Tensor all = call.view(dgates, {rows, gates}, {gates, 1}), to = call.view(gradient, {rows, features}, {features, 1});
    if (plan.residual_pass.function) {
      const i64 collected[] = {gradient.address(), dgates.address(), rows * features};
      call.launch(plan.residual_pass, collected);
    }
    if (plan.residual || plan.residual_pass.function) call.addmm(to, all, folded);
    else call.mm(to, all, folded);
    call.add(static_cast<Tensor&&>(gradient));
  }
  call.add(static_cast<Tensor&&>(dh0));
  call.add(static_cast<Tensor&&>(dc0));
  const i64 biases = !!(flags & OF_BIAS) + !!(flags & OF_OTHER_BIAS);
  if (biases || flags & OF_CONTEXT) {
    Tensor before = call.empty({steps, batch, plan.groups, plan.padded}, plan.dtype);
    Tensor dbias = call.empty({biases, gates}, plan.bias);
    const i64 rest[] = {out.address(), h0.address(), lengths.address(), bias_parts.address(), before.address(),
                        dbias.address(), steps, batch, plan.groups, reverse, plan.bias_rows, biases};
    call.launch(plan.tail, rest);
    if (flags & OF_CONTEXT) call.add(gradient_of_context(call, dgates, before, rows));
    for (i64 i = 0; i < biases; i++) call.add(call.view(dbias, {gates}, {1}, i * gates));
  }
  if (flags & OF_LEVELS) gradients_of_levels(call, dgates, x, rows);
  stack[0] = call.finish();
}

}  // namespace

// Makes the operators known to PyTorch; returns 0 where that worked.
extern "C" __attribute__((visibility("default"))) int pru_register_host(const Functions* f) {
  const char *name = "torch_pru_host", *file = "host.cpp";
  const uint64_t version = (uint64_t)2 << 56 | (uint64_t)10 << 48;  // the stable interface of PyTorch 2.10
  Library schemas = nullptr, code = nullptr;
  return f->new_library(name, file, 0, &schemas) ||
         f->define(schemas, "forward(int plan, Tensor[] given, int flags, int stream) -> Tensor[]") ||
         f->define(schemas, "backward(int plan, Tensor[] given, int flags, int stream) -> Tensor[]") ||
         f->define(schemas, "step(int plan, Tensor[] given, int flags, int stream) -> Tensor[]") ||
         f->new_implementation(name, "CompositeExplicitAutograd", file, 0, &code) ||
         f->implement(code, "forward", forward, version) || f->implement(code, "backward", backward, version) ||
         f->implement(code, "step", step, version);
}
